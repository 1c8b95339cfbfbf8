"""The benchmark compares what it times: inexact rows are marked and not counted; break-even and
advice follow from the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from taliesin.cli import app
from taliesin.engine import certificate
from taliesin.engine.embedded import Engine
from taliesin.engine.llama import Settings
from taliesin.errors import StoreFull, UsageError
from taliesin.host import pagecache
from taliesin.measure import bench
from taliesin.measure.bench import Bench, BenchReport, BenchRow, Sample


def row(n_tokens: int, mode: str, *seconds: float, exact: bool = True) -> BenchRow:
    return BenchRow(
        n_tokens, mode, [Sample(s, 0.0, 0.0, 8, 8 if exact else 7, None) for s in seconds]
    )


def report(*rows: BenchRow) -> BenchReport:
    return BenchReport(list(rows), 1, 7, {}, {})


def test_break_even_is_interpolated_between_the_lengths_around_it() -> None:
    measured = report(
        row(10, "fresh", 1.0), row(10, "memory", 3.0), row(20, "fresh", 5.0), row(20, "memory", 3.0)
    )
    assert measured.break_even("memory") == 15


def test_a_graft_that_never_wins_has_no_break_even() -> None:
    assert report(row(10, "fresh", 1.0), row(10, "memory", 3.0)).break_even("memory") is None


def test_a_graft_that_always_wins_breaks_even_at_nothing() -> None:
    assert report(row(10, "fresh", 3.0), row(10, "memory", 1.0)).break_even("memory") == 0


def test_a_row_that_is_not_exact_is_not_counted() -> None:
    measured = report(row(10, "fresh", 3.0), row(10, "memory", 1.0, exact=False))
    bad = measured.row(10, "memory")
    assert measured.speedup(bad) is None
    assert measured.ratios(bad) == []
    assert measured.break_even("memory") is None


def test_the_spread_of_a_single_run_is_absent() -> None:
    assert row(10, "memory", 1.0).spread is None
    assert row(10, "memory", 1.0, 3.0, 2.0).spread == (1.0, 3.0)
    assert row(10, "memory", 1.0, 3.0, 2.0).median == 2.0


def test_a_dropped_file_is_cold_and_a_read_one_is_warm(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 300_000)
    pagecache.warm(path)
    assert pagecache.cached_fraction(path) == 1.0
    pagecache.drop(path)
    assert pagecache.cached_fraction(path) in (0.0, 1.0)  # tmpfs has no disk to forget to


@pytest.fixture
def engine(tiny_model: Callable[..., Path]) -> Engine:
    return Engine(str(tiny_model()), Settings(n_ubatch=128, n_threads=1))


@pytest.mark.native
def test_every_mode_is_timed_and_exact(engine: Engine) -> None:
    with engine:
        measured = Bench(engine, repeats=2, warm_up=0, check_steps=3).run([20, 300])
    assert measured.lengths == [20, 300]
    assert measured.modes == list(bench.MODES)
    for found in measured.rows:
        assert found.exact
        assert len(found.samples) == 2
        assert all(sample.n_vectors == 4 for sample in found.samples)
        assert found.mode == "fresh" or found.stored_bytes > 0
    document = measured.as_dict()
    assert len(document["machine"]["load_average"]) == 3
    json.dumps(document)
    page = bench.markdown(measured)
    assert page.count("\n| ") == len(measured.rows) + 2


@pytest.mark.native
def test_a_graft_that_computes_something_else_is_marked(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = certificate.digest
    seen = {"vectors": 0}

    def tampered(logits: object) -> str:
        seen["vectors"] += 1
        digest = genuine(logits)  # type: ignore[arg-type]
        # per repeat: 4 vectors fresh, then 4 of the graft; the graft's last one is changed
        return digest[::-1] if seen["vectors"] % 8 == 0 else digest

    with engine:
        runner = Bench(engine, repeats=2, warm_up=0, check_steps=3, modes=("memory",))
        monkeypatch.setattr(bench.certificate, "digest", tampered)
        # saving hashes vectors as well
        monkeypatch.setattr("taliesin.engine.certificate.take", lambda *_: None)
        measured = runner.run([20])
    found = measured.row(20, "memory")
    assert not found.exact
    assert "NOT EXACT" in " ".join(bench.table_rows(measured)[1])


@pytest.mark.native
def test_lengths_beyond_the_model_are_refused(engine: Engine) -> None:
    with engine, pytest.raises(UsageError, match="length"):
        Bench(engine).run([engine.model.n_ctx_train])


@pytest.mark.native
def test_bench_writes_its_raw_data_a_page_and_a_plot(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "results" / "tiny"
    arguments = [
        "bench",
        "--model",
        str(tiny_model()),
        "--threads",
        "1",
        "--ubatch",
        "128",
        "--lengths",
        "40",
    ]
    result = CliRunner().invoke(
        app, [*arguments, "--small", "", "--repeats", "1", "--out", str(out), "--json"]
    )
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["schema"] == "taliesin.bench/1"
    assert json.loads(out.with_suffix(".json").read_text()) == printed
    assert out.with_suffix(".md").read_text().startswith("# Fresh prefill and graft")


@pytest.mark.parametrize("verb", ["bench", "needle"])
def test_where_results_cannot_be_written_nothing_is_measured(tmp_path: Path, verb: str) -> None:
    (tmp_path / "file").touch()
    out = str(tmp_path / "file" / "result")
    found = CliRunner().invoke(app, [verb, "--model", str(tmp_path / "absent.gguf"), "--out", out])
    assert isinstance(found.exception, StoreFull)  # and not that there is no such model


@pytest.mark.native
def test_the_exit_code_says_what_the_measurement_says(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """Which of the two is faster for six tokens is the machine's business; that both answers agree
    is ours.
    """
    text = tmp_path / "text"
    text.write_text("hello")
    arguments = [
        "advise",
        str(text),
        "--raw",
        "--model",
        str(tiny_model()),
        "--threads",
        "1",
        "--json",
    ]
    result = CliRunner().invoke(app, arguments)
    advice = json.loads(result.stdout)
    assert result.exit_code == (0 if advice["pays"] else 3), result.output
    assert advice["pays"] == (advice["graft_seconds"] < advice["fresh_seconds"])
    assert advice["n_tokens"] == 6


@pytest.mark.native
def test_advice_for_a_tiny_prompt_is_that_prefill_is_faster(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slower = bench.Advice(6, 6, 0.001, 0.010, 0.1, 1000, 40.0, None, True)
    monkeypatch.setattr(bench, "advise", lambda *_args, **_options: slower)
    text = tmp_path / "text"
    text.write_text("hello")
    result = CliRunner().invoke(app, ["advise", str(text), "--raw", "--model", str(tiny_model())])
    assert result.exit_code == 3, result.output
    assert "faster" in result.output


@pytest.mark.native
def test_no_text_gets_no_advice(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    result = CliRunner().invoke(app, ["advise", str(tmp_path / "empty")])
    assert isinstance(result.exception, UsageError)
