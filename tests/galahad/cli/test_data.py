"""`galahad data`: exit codes, what goes to stdout and what to stderr."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from galahad.cli import app
from taliesin.host import console

ROWS = [
    {"id": "a", "problem": "Compute $\\frac{84}{2}$.", "answer": "042"},
    {
        "id": "b",
        "problem": "How many of 200 integers end in 7 or 9?",
        "answer": 40,
        "solution": "secret",
    },
]


def put(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def galahad(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["galahad", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        console.run(app, "galahad")
    return int(exit_.value.code or 0)


def test_a_clean_file_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert galahad(monkeypatch, "data", "check", put(tmp_path / "x.jsonl", ROWS)) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2 rows, 0 errors" in captured.err


def test_faults_exit_with_3_and_name_row_and_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path / "x.jsonl", [ROWS[0], {**ROWS[1], "answer": 2000}])
    assert galahad(monkeypatch, "data", "check", path) == 3
    assert "gold-out-of-range" in capsys.readouterr().out
    assert galahad(monkeypatch, "data", "check", path, "--json") == 3
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "galahad.data.check/1"
    assert (report["rows"], report["clean"], report["usable"]) == (2, False, False)
    assert [(f["row"], f["id"], f["kind"], f["severity"]) for f in report["faults"]] == [
        (2, "b", "gold-out-of-range", "error")
    ]


def test_what_is_no_problem_file_exits_with_40_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.txt"
    path.write_text("prose")
    for verb in ("check", "import", "show"):
        assert (
            galahad(
                monkeypatch,
                "data",
                verb,
                path,
                "--json",
                *(["--out", tmp_path / "o"] if verb == "import" else []),
            )
            == 40
        )
        captured = capsys.readouterr()
        assert captured.out == ""
        assert json.loads(captured.err)["error"]["kind"] == "suite"


def test_repair_writes_another_file_and_says_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = [{**ROWS[0], "problem": "Compute $\frac{84}{2}$."}, ROWS[1]]
    path, out = put(tmp_path / "x.jsonl", damaged), tmp_path / "new.jsonl"
    before = path.read_bytes()
    assert galahad(monkeypatch, "data", "check", path, "--repair", "--out", out) == 0
    assert "repaired: row 1 (a): put back LaTeX commands" in capsys.readouterr().out
    assert path.read_bytes() == before
    assert [json.loads(line)["problem"] for line in out.read_text().splitlines()] == [
        row["problem"] for row in ROWS
    ]
    put(path, [*damaged, {"id": "c", "problem": "Letter?", "answer": "C"}])
    assert galahad(monkeypatch, "data", "check", path, "--repair", "--out", out, "--json") == 4
    repair = json.loads(capsys.readouterr().out)["repair"]
    assert (repair["rows"], [f["kind"] for f in repair["left"]]) == (2, ["gold-not-an-integer"])


def test_repair_needs_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "x.jsonl", ROWS)
    assert galahad(monkeypatch, "data", "check", path, "--repair") == 2
    assert galahad(monkeypatch, "data", "check", path, "--out", tmp_path / "o") == 2
    assert galahad(monkeypatch, "data", "check", path, "--repair", "--out", path) == 2


def test_differences_to_a_clean_copy_exit_with_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = put(tmp_path / "clean.jsonl", ROWS)
    copy = put(
        tmp_path / "copy.jsonl", [{**ROWS[1], "problem": "How many of 300 integers end in 7 or 9?"}]
    )
    assert galahad(monkeypatch, "data", "check", copy, "--against", clean) == 3
    out = capsys.readouterr().out
    assert "'200' became '300'" in out
    assert "missing, 1 only in the reference: a" in out
    assert galahad(monkeypatch, "data", "check", clean, "--against", clean) == 0


def test_import_gives_our_own_lines_and_no_solution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path / "x.jsonl", ROWS)
    assert galahad(monkeypatch, "data", "import", path) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [list(line) for line in lines] == [["id", "problem", "answer", "sha256"]] * 2
    assert [line["answer"] for line in lines] == [42, 40]
    assert galahad(monkeypatch, "data", "import", path, "--json") == 2
    capsys.readouterr()
    assert (
        galahad(monkeypatch, "data", "import", path, "--json", "--out", tmp_path / "own.jsonl") == 0
    )
    assert json.loads(capsys.readouterr().out)["rows"] == 2
    assert galahad(monkeypatch, "data", "check", tmp_path / "own.jsonl") == 0


def test_show_hides_golds_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path / "x.jsonl", ROWS)
    assert galahad(monkeypatch, "data", "show", path, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [sorted(p) for p in shown["problems"]] == [["id", "problem", "sha256"]] * 2
    assert galahad(monkeypatch, "data", "show", path, "--id", "b", "--gold") == 0
    out = capsys.readouterr().out
    assert "How many of 200 integers end in 7 or 9?" in out
    assert "answer 40" in out
    assert galahad(monkeypatch, "data", "show", path, "--id", "nine") == 2


def test_a_pipe_and_stdin_work_in_a_real_process(tmp_path: Path) -> None:
    rows = put(tmp_path / "x.jsonl", ROWS).read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "galahad", "data", "show", "-", "--json"],
        input=rows,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 2
