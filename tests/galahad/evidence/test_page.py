"""Reports of runs: Markdown, one HTML page, and two runs compared."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from galahad import cli
from galahad.evidence import compare, findings, page
from galahad.livebench import run as livebench
from galahad.measure.engine import EngineRecord
from galahad.solve import log as runlog
from galahad.solve import summary as report
from galahad.solve.records import SuiteRecord
from galahad.solve.solver import Settings
from galahad.solve.summary import Summary
from galahad.solve.writer import RunLog
from taliesin.errors import FormatError, UsageError
from taliesin.host import console, records
from tests.galahad.doubles import (
    livebench_answer,
    livebench_said,
    livebench_settings,
    run_attempt,
    run_header,
    run_session,
    run_transcript,
)

NASTY = "<script>alert(1)</script>&\"'|`"


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durability is not what is tested here, and a busy disk makes a second of each flush."""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    def made(
        name: str,
        answers: list[int | None],
        seed: int = 0,
        suite: str = "suite.jsonl",
        texts: str = "t",
    ) -> Path:
        problems = {f"p{i}": texts for i in range(len(answers))}
        header = run_header(
            suite=SuiteRecord(name=suite, sha256="ab" * 32, problems=problems),
            engine=EngineRecord(engine="embedded", model=NASTY, model_sha256="cd" * 32),
            settings=Settings(seed=seed),
        )
        folder = tmp_path / name
        with RunLog.create(folder, header) as log:
            log.session(run_session(cpu=NASTY))
            for i, answer in enumerate(answers):
                attempt = run_attempt(
                    problem=f"p{i}",
                    answer=answer,
                    confidence="uncertain" if i % 2 else "confident",
                    n_out=100 + i,
                )
                log.attempt(attempt, run_transcript(attempt, "secret words"))
        return folder

    return made


def summary(folder: Path) -> Summary:
    return report.summarise(runlog.read(folder))


class Balance(HTMLParser):
    """Every tag that opens closes, in order; which tags and attributes there are."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [str(v) for k, v in attrs if k in ("src", "href")]
        if tag not in ("meta", "rect", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(html: str) -> Balance:
    found = Balance()
    found.feed(html)
    assert found.open == []
    return found


def test_page_has_the_figures_and_no_foreign_thing(make: Callable[..., Path]) -> None:
    html = page.page([summary(make("run", [7, 8, None, 7]))], None, [])
    found = read(html)
    assert found.tags.isdisjoint({"script", "link", "img", "iframe"})
    assert found.links == []
    assert "http" not in re.sub(r"http-equiv", "", html)
    assert "2/4" in html
    assert "15.0% to 85.0%" in html
    assert "generations cut off at their token limit: 1 of 4" in html
    assert "not measured" in html
    assert "secret words" not in html
    assert "alert(1)" in html
    assert "viewport" in html
    assert "@media print" in html


def test_confident_and_wrong_are_named(make: Callable[..., Path]) -> None:
    assert "confident and wrong: p2" in page.page([summary(make("run", [7, 8, 9]))], None, [])


def test_run_without_attempts_has_a_page(make: Callable[..., Path]) -> None:
    html = page.page([summary(make("run", []))], None, [])
    read(html)
    assert "no right answer" in html


def test_comparison_says_more_than_noise_only_when_it_is(make: Callable[..., Path]) -> None:
    none: list[int | None] = [None] * 12
    worse, better = summary(make("a", none)), summary(make("b", [7] * 10 + [None, None], seed=1))
    found = compare.compare(worse, better)
    assert "more problems right than noise explains" in found.verdict
    assert found.changes == [("settings.seed", "0", "1")]
    assert (len(found.gained), found.lost) == (10, [])
    assert "fewer problems right" in compare.compare(better, worse).verdict
    few = compare.compare(summary(make("c", none[:4])), summary(make("d", [7, 7, 7, None])))
    assert few.verdict.startswith("undecided: 3 problems differ")
    even = compare.compare(
        summary(make("e", [7] * 4 + none[:4])), summary(make("f", none[:4] + [7] * 4))
    )
    assert even.verdict.startswith("no difference beyond noise")
    read(page.page([worse, better], found, []))
    assert "McNemar exact" in compare.markdown(found)


def test_only_problems_of_the_same_text_are_paired(make: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="no problem in common"):
        compare.compare(summary(make("a", [7])), summary(make("b", [7], texts="other")))
    found = compare.compare(summary(make("c", [7, 8])), summary(make("d", [7])))
    assert (found.outcomes.n, found.n_unpaired) == (1, 1)


RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def test_every_schema_that_was_measured_has_a_section() -> None:
    sections = set()
    for path in sorted(RESULTS.rglob("*.json")):
        document = json.loads(path.read_bytes())
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema in findings.READERS and schema not in sections:
            sections.add(schema)
            html = page.page([], None, [(path.name, document)])
            assert read(html).tags >= {"h2"}
            assert "<td" in html or "<li" in html, path.name
    assert len(sections) >= 20


def test_results_have_pictures_where_they_say_more() -> None:
    named = (
        RESULTS / "bench_cpu2_gemma3_270m.json",
        RESULTS / "flywheel-qwen2.5-coder-1.5b" / "cost.json",
    )
    html = page.page([], None, [(path.name, json.loads(path.read_bytes())) for path in named])
    assert read(html).tags >= {"svg", "table"}
    assert "2048 tokens, prefill" in html
    assert "for one percentage point of accuracy" in html


def test_livebench_says_both_arms_and_whether_they_differ() -> None:
    one = livebench_answer("q", livebench_said(True), livebench_said(False, cut=True))
    answered = livebench.result(livebench_settings(), {"transfer": [one], "replay": []}, 2)
    html = page.page([], None, [("livebench_m.json", records.plain(answered))])
    read(html)
    assert "1/1 = 100.0% (Wilson 95 %: 20.7% to 100.0%)" in html
    assert "McNemar p" in html
    assert "run not complete" in html


def test_what_is_no_raw_result_is_refused() -> None:
    with pytest.raises(UsageError, match="no section"):
        page.page([], None, [("x.json", {"schema": "odd/1"})])
    with pytest.raises(FormatError, match="a raw result has no field"):
        page.page([], None, [("x.json", {"schema": "taliesin.bench/1"})])


@pytest.mark.parametrize(
    "name",
    ["cost.json", "merged.json", "bench_cpu2_gemma3_270m.json", "peers.json", "upgrade_cpu.json"],
)
def test_field_that_is_missing_or_of_another_kind_is_one_error_and_never_markup(name: str) -> None:
    """Each field of a measured file in turn is dropped or becomes something else: a page, or the
    one error.
    """
    text = next(RESULTS.rglob(name)).read_text(encoding="utf-8")
    refused = 0
    for place in dict.fromkeys(_places(json.loads(text))):
        changes: tuple[Any, ...] = (..., None, [], {"a": 1}, NASTY, -1, 1e308, 10**400)
        for value in changes:
            document = json.loads(text)
            inner = document
            for key in place[:-1]:
                inner = inner[key]
            if value is ...:
                del inner[place[-1]]
            else:
                inner[place[-1]] = value
            try:
                html = page.page([], None, [(name, document)])
            except (FormatError, UsageError):
                refused += 1
            else:
                assert "<script" not in html
                assert not re.search(r'"-?(nan|inf)"', html)
    assert refused > 20


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all fields; of each list the first element's."""
    if place:
        yield place
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:1])
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from _places(inner, (*place, key))


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"schema": NaN}', '{"a": -Infinity}', "\xff", '{"schema": []}', "1" * 5000],
)
def test_what_json_does_not_have_is_no_raw_result(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, text: str
) -> None:
    (tmp_path / "x.json").write_text(text, encoding="latin-1")
    code, _, err = run("report", "--html", tmp_path / "page.html", "--with", tmp_path / "x.json")
    assert (code, err.count("error:")) == (2, 1)
    assert not (tmp_path / "page.html").exists()


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setattr(console, "_quiet", False)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["galahad", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, captured.out, captured.err

    return call


def test_bars_of_large_figures_have_no_exponent() -> None:
    drawn = page._bars([("a long label", [(15995.0, "bar")]), ("b", [(0.5, "two")])], "tokens")
    assert "15,995 tokens" in drawn
    assert "0.5 tokens" in drawn


def test_bars_stay_on_the_page_whatever_their_labels_and_figures() -> None:
    drawn = page._bars([("n" * 10_000, [(1e308, "bar")])], "tokens")
    assert len(drawn) < 2000
    for value in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="below zero or not finite"):
            page._bars([("a", [(value, "bar")])], "tokens")


def test_command_prints_markdown_json_or_writes_a_page(
    make: Callable[..., Path], run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    a, b = make("a", [7, None]), make("b", [7, 7])
    code, out, _ = run("report", a)
    assert (code, out.startswith("# Run on suite.jsonl")) == (0, True)
    code, out, _ = run("report", a, b)
    assert "right only in the second: p1" in out
    assert out.count("# Run on") == 2
    code, out, _ = run("report", a, b, "--json")
    fields = json.loads(out)
    assert fields["schema"] == "galahad.report/1"
    assert fields["comparison"]["gained"] == ["p1"]
    assert fields["accuracy"]["k"] == 1
    assert fields["others"][0]["accuracy"]["k"] == 2
    code, out, err = run("report", a, b, "--html", tmp_path / "r.html")
    assert (code, out) == (0, "")
    read((tmp_path / "r.html").read_text(encoding="utf-8"))
    code, _, err = run("report", a, "--html", tmp_path / "none" / "r.html")
    assert code == 2
    code, _, err = run("report", a, "--html", tmp_path / "q.html", "--with", a / "run.jsonl")
    assert code == 2
    assert not (tmp_path / "q.html").exists()
    assert "not a raw result" in err
    cost = RESULTS / "flywheel-qwen2.5-coder-1.5b" / "cost.json"
    assert run("report", "--html", tmp_path / "q.html", "--with", cost)[0] == 0
    assert "for one percentage point" in (tmp_path / "q.html").read_text(encoding="utf-8")
    for nothing in (
        [],
        ["--html", tmp_path / "s.html"],
        ["--with", cost],
        ["--html", tmp_path / "s.html", "--with", cost, "--json"],
    ):
        assert run("report", *nothing)[0] == 2
    code, _, err = run("report", a, make("c", [7], texts="u"))
    assert code == 0
    assert "no comparison" in err


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_page_fits_its_window_in_chromium(
    make: Callable[..., Path], tmp_path: Path, width: int
) -> None:
    browser = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if browser is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    found = summary(make("run", [7, 8, None, 7] * 5))
    html = page.page([found], None, [])
    # The page itself has no script; this copy tells its own width.
    probe = "<script>document.title='width '+document.documentElement.scrollWidth</script></body>"
    (tmp_path / "page.html").write_text(html.replace("</body>", probe), encoding="utf-8")
    common = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--window-size={width},1600",
    ]
    url = (tmp_path / "page.html").as_uri()
    done = subprocess.run(
        [*common, "--dump-dom", url], capture_output=True, text=True, timeout=300, check=True
    )
    title = re.search(r"<title>width (\d+)</title>", done.stdout)
    assert title is not None
    # Headless windows are at least about 500 pixels wide; what counts is that nothing is wider than
    # the window.
    assert int(title[1]) <= max(width, 500)
    picture = tmp_path / "page.png"
    subprocess.run(
        [*common, f"--screenshot={picture}", url], capture_output=True, timeout=300, check=True
    )
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 20_000, "an empty page"
