"""The run log: what survives a crash, what is refused, and that totals stay right."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galahad.errors import RunLogError
from galahad.measure.canonical import canonical
from galahad.measure.engine import EngineRecord
from galahad.solve import log as runlog
from galahad.solve import markdown, summary, writer
from galahad.solve.log import LOG, TRANSCRIPTS, Run
from galahad.solve.records import Attempt, Key, SuiteRecord
from galahad.solve.solver import Settings
from galahad.solve.writer import RunLog
from taliesin.errors import StoreFull, UsageError
from taliesin.host import records
from tests.galahad.doubles import run_attempt, run_header, run_session, run_transcript

HEADER = run_header()


def add(log: RunLog, number: int, text: str = "", **changes: Any) -> Attempt:
    attempt = run_attempt(number, **changes)
    return log.attempt(attempt, run_transcript(attempt, text))


def make(folder: Path, n: int = 3) -> Path:
    with RunLog.create(folder, HEADER) as log:
        log.session(run_session())
        for number in range(n):
            add(log, number, f"text {number}\n\u2028 é \ud83d", answer=number)
    return folder


def said(run: Run) -> dict[Key, str]:
    return {key: told.passes["program"].text for key, told in runlog.transcripts(run).items()}


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    run = runlog.read(make(tmp_path / "run"))
    assert run.header.suite.problems == {"p1": "x"}
    assert [a.answer for a in run.attempts] == [0, 1, 2]
    assert len(run.sessions) == 1
    assert run.torn_bytes == 0
    assert run.done == {("p1", 0), ("p1", 1), ("p1", 2)}
    assert said(run) == {("p1", k): f"text {k}\n\u2028 é \ud83d" for k in range(3)}


def test_files_are_private(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {(folder / name).stat().st_mode & 0o777 for name in (LOG, TRANSCRIPTS)} == {0o600}


def test_a_run_is_not_started_over_another(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    before = (folder / LOG).read_bytes()
    with pytest.raises(UsageError, match="holds a run already"):
        RunLog.create(folder, HEADER)
    assert (folder / LOG).read_bytes() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        RunLog.create(tmp_path / "other", HEADER)


def test_resume_goes_on_behind_the_last_record(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", 2)
    with RunLog.resume(folder, run_header(created="later")) as log:
        assert log.done == {("p1", 0), ("p1", 1)}
        add(log, 2)
    assert len(runlog.read(folder).attempts) == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"settings": Settings(seed=8)}, "settings.seed: 0 there, 8 now"),
        (
            {"suite": SuiteRecord(name="suite.jsonl", sha256="ab" * 32, problems={"p1": "y"})},
            "suite.problems: {'p1': 'x'} there",
        ),
        ({"engine": EngineRecord(engine="server", model="script")}, "engine.model_sha256: cd"),
        ({"rule": "v"}, "rule: u there, v now"),
    ],
)
def test_resume_refuses_other_inputs_and_names_them(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    folder = make(tmp_path / "run")
    with pytest.raises(RunLogError, match="other inputs") as caught:
        RunLog.resume(folder, run_header(**change))
    assert named in str(caught.value.got)


def test_two_processes_do_not_write_one_run(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    assert not writer.is_running(folder)
    with RunLog.resume(folder, HEADER):
        assert writer.is_running(folder)
        with pytest.raises(RunLogError, match="another process"):
            RunLog.resume(folder, HEADER)
        assert len(runlog.read(folder).attempts) == 3
    assert not writer.is_running(folder)


@given(cut=st.integers(min_value=1, max_value=400))
@settings(max_examples=60, deadline=None)
def test_a_torn_last_record_is_cut_off_and_done_again(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = make(tmp_path_factory.mktemp("t") / "run")
    data = (folder / LOG).read_bytes()
    last = data[:-1].rindex(b"\n") + 1
    at = max(last, len(data) - cut)
    (folder / LOG).write_bytes(data[:at])
    run = runlog.read(folder)
    assert len(run.attempts) == 2
    assert run.torn_bytes == at - last
    with RunLog.resume(folder, HEADER) as log:
        assert log.recovered_bytes == at - last
        add(log, 2, "again")
    run = runlog.read(folder)
    assert sum(a.tokens_out for a in run.attempts) == 30
    assert said(run)["p1", 2] == "again"


def test_zeros_at_the_end_are_a_torn_write(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    with (folder / LOG).open("ab") as file:
        file.write(bytes(4096))
    assert len(runlog.read(folder).attempts) == 3
    with RunLog.resume(folder, HEADER) as log:
        assert log.recovered_bytes == 4096


def test_a_torn_transcript_spoils_nothing_behind_it(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", 1)
    with (folder / TRANSCRIPTS).open("ab") as file:
        file.write(b'{"problem":"p1","atte')
    with RunLog.resume(folder, HEADER) as log:
        add(log, 1, "whole")
    assert said(runlog.read(folder))["p1", 1] == "whole"


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_changed_byte_is_refused_or_is_the_torn_end(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = make(tmp_path_factory.mktemp("t") / "run")
    whole = bytearray((folder / LOG).read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    (folder / LOG).write_bytes(whole)
    last = bytes(whole[:-1]).rfind(b"\n") + 1
    try:
        run = runlog.read(folder)
    except RunLogError:
        return
    assert run.torn_bytes
    assert at >= last or whole[at : at + 1] != b"\n"
    assert len(run.attempts) == 2
    assert run.end <= at


@pytest.mark.parametrize("damage", ["edited", "removed", "swapped", "doubled"])
def test_damage_elsewhere_is_refused_with_its_line(tmp_path: Path, damage: str) -> None:
    folder = make(tmp_path / "run")
    lines = (folder / LOG).read_bytes().splitlines(keepends=True)
    match damage:
        case "edited":
            lines[3] = lines[3].replace(b'"answer":1', b'"answer":5')
        case "removed":
            del lines[3]
        case "swapped":
            lines[2], lines[3] = lines[3], lines[2]
        case "doubled":
            lines.insert(3, lines[2])
    (folder / LOG).write_bytes(b"".join(lines))
    with pytest.raises(RunLogError, match="damaged") as caught:
        runlog.read(folder)
    assert "line " in str(caught.value.where)
    with pytest.raises(RunLogError):
        RunLog.resume(folder, HEADER)
    assert (folder / LOG).read_bytes() == b"".join(lines)


def test_an_edited_transcript_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    path = folder / TRANSCRIPTS
    path.write_bytes(path.read_bytes().replace(b"text 1", b"text 7"))
    with pytest.raises(RunLogError, match="transcript"):
        runlog.transcripts(runlog.read(folder))


@pytest.mark.parametrize(
    "content",
    [None, b"", b"{}\n", b"hello\n", b'{"schema":"galahad.run/9","kind":"run"}\n', b"[1]\n"],
)
def test_what_is_no_run_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / LOG).write_bytes(content)
    with pytest.raises(RunLogError):
        runlog.read(tmp_path)


@pytest.mark.parametrize(
    "line",
    [b'{"kind": "attempt", "x": NaN}', b'{"x": 1e999}', b'{"x": ' + b"[" * 900 + b"]" * 900 + b"}"],
)
def test_json_that_is_never_written_is_damage(tmp_path: Path, line: bytes) -> None:
    folder = make(tmp_path / "run")
    with (folder / LOG).open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(RunLogError, match="damaged"):
        runlog.read(folder)


def forge(folder: Path, line: dict[str, Any]) -> None:
    """Another program writes a line that continues the chain."""
    line["chain"] = runlog.chained(runlog.read(folder).chain, line)
    with (folder / LOG).open("ab") as file:
        file.write(canonical(line) + b"\n")


MISSING = object()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("problem", 5, "field problem of an attempt"),
        ("attempt", "x", "field attempt of an attempt"),
        ("attempt", -1, "field attempt of an attempt"),
        ("gold", MISSING, "has no field gold"),
        ("gold", 1000, "field gold of"),
        ("routes", None, "field routes of"),
        ("routes", [{"route": "guess", "answer": 1, "cause": ""}], r"field routes\[0\].route"),
        ("seconds", 1e300, "field seconds of"),
        ("tokens_out", 10**400, "field tokens_out of"),
        ("more", 1, "a field that its format does not have"),
    ],
)
def test_a_record_of_another_program_is_one_error_with_its_line_and_field(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    folder = make(tmp_path / "run")
    line = {**records.plain(run_attempt(9)), field: value}
    forge(folder, {name: value for name, value in line.items() if value is not MISSING})
    with pytest.raises(RunLogError, match=message) as caught:
        runlog.read(folder)
    assert str(caught.value.where).endswith("line 6")


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_value_in_any_field_of_a_run_is_read_or_is_one_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """What is read can be summed up and printed: no record gets as far as a traceback."""
    folder = tmp_path_factory.mktemp("t")
    lines = [records.plain(record) for record in (HEADER, run_session(), run_attempt())]
    inner: Any = data.draw(st.sampled_from(lines))
    while True:
        key = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(1)))
        if (
            not isinstance(inner[key], (dict, list, tuple))
            or not inner[key]
            or data.draw(st.booleans())
        ):
            break
        inner[key] = list(inner[key]) if isinstance(inner[key], tuple) else inner[key]
        inner = inner[key]
    values = (
        st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
    )
    inner[key] = data.draw(values | st.just([]) | st.just({}) | st.just(10**400))
    chain = ""
    with (folder / LOG).open("wb") as file:
        for line in lines:
            chain = line["chain"] = runlog.chained(chain, line)
            file.write(canonical(line) + b"\n")
    with contextlib.suppress(RunLogError):
        markdown.markdown(summary.summarise(runlog.read(folder)))


@pytest.mark.parametrize("name", ["own", "aime2025", "own-smollm2-135m"])
def test_the_logs_of_earlier_versions_are_read_and_say_the_same(name: str) -> None:
    results = Path(__file__).parents[3] / "benchmarks" / "results"
    found = summary.summarise(runlog.read(results / "solve" / name))
    page = (results / "solve" / name / "report.md").read_text(encoding="utf-8")
    assert markdown.markdown(found) + "\n" == page
    kept = json.loads((results / f"solve_{name}.json").read_bytes())
    del kept["schema"], kept["run"]
    assert json.loads(json.dumps(found.as_dict())) == kept


def test_a_log_that_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOG)
    with pytest.raises(RunLogError, match="no file"):
        runlog.read(tmp_path)


def test_a_run_that_may_not_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "run")

    def read_only(_path: Path) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(writer, "_open", read_only)
    with pytest.raises(StoreFull, match="cannot be written"):
        RunLog.resume(folder, runlog.read(folder).header)


def test_a_full_disk_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "run", 1)
    before = (folder / LOG).read_bytes()
    write = os.write

    def fail(fd: int, data: bytes | memoryview) -> int:
        if b'"kind":"attempt"' in bytes(data):
            write(fd, data[:20])
            raise OSError(28, "No space left on device")
        return write(fd, data)

    with RunLog.resume(folder, HEADER) as log:
        monkeypatch.setattr(os, "write", fail)
        with pytest.raises(StoreFull):
            add(log, 1)
        monkeypatch.undo()
        assert (folder / LOG).read_bytes() == before
        add(log, 1)
    assert len(runlog.read(folder).attempts) == 2


def _write_forever(folder: Path) -> None:
    with RunLog.resume(folder, HEADER) as log:
        for k in range(len(log.done), 100_000):
            add(log, k, "x" * 500, n_out=1)


def test_kill_9_loses_at_most_the_attempt_in_flight(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", 0)
    context = multiprocessing.get_context("spawn")
    n_before = 0
    for _ in range(2):
        child = context.Process(target=_write_forever, args=(folder,))
        child.start()
        while len(runlog.read(folder).attempts) < n_before + 5:
            time.sleep(0.01)
            assert child.is_alive()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        run = runlog.read(folder)
        n_before = len(run.attempts)
        assert [a.attempt for a in run.attempts] == list(range(n_before))
        assert sum(a.tokens_out for a in run.attempts) == n_before
        assert len(runlog.transcripts(run)) == n_before


def test_a_line_is_strict_json_with_sorted_keys(tmp_path: Path) -> None:
    for line in (make(tmp_path / "run") / LOG).read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        assert list(record) == sorted(record)
