"""`taliesin replay` and `simulate`: exit codes and what is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from taliesin import cli
from taliesin.host import console

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(console, "_quiet", False)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["taliesin", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, captured.out, captured.err

    return call


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    def said(role: str, content: str) -> dict[str, str]:
        return {"role": role, "content": content}

    rules = said("system", "the rules of the house, at length " * 12)
    lines = [
        {"messages": [rules, said("user", f"q{n}"), said("assistant", "a" * 20)] * 2}
        for n in range(2)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.native
def test_our_server_answers_a_trace_as_a_cold_one_warm_and_after_a_restart(
    run: Run, trace: Path, tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    out = tmp_path / "rows.jsonl"
    options = ["--model", str(tiny_model()), "--ubatch", "64", "--threads", "1", "--ctx", "2048"]
    code, said, _ = run("replay", str(trace), *options, "--out", str(out), "--json")
    assert code == 0
    passes = {p["label"]: p for p in json.loads(said)["passes"]}
    assert list(passes) == ["warm", "restart", "cold"]
    for found in passes.values():
        assert (found["answered"], found["equal_tokens"], found["equal_scores"]) == (4, 4, 4)
    assert passes["restart"]["cached"] > passes["warm"]["cached"] > passes["cold"]["cached"] == 0
    assert passes["warm"]["written_bytes"] > 0
    assert passes["restart"]["written_bytes"] == 0
    lines = out.read_bytes()
    code, said, _ = run("replay", str(trace), *options, "--out", str(out))
    assert (code, out.read_bytes()) == (0, lines)  # nothing was asked again
    assert "4 of 4" in said


def test_options_of_our_server_contradict_a_url(run: Run, trace: Path) -> None:
    code, out, err = run("replay", str(trace), "--url", "http://127.0.0.1:9/v1", "--ubatch", "64")
    assert (code, out) == (2, "")
    assert "beside --url" in err
    code, _, err = run("replay", str(trace), "--url", "http://127.0.0.1:9/v1")
    assert code == 35


def test_a_trace_is_simulated_with_budgets(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "hashes.jsonl"
    lines = [{"input_length": 1024, "hash_ids": [0, n % 3]} for n in range(9)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, _ = run("simulate", str(path), "--shares", "0.5,1", "--json")
    assert code == 0
    found = json.loads(out)["lines"]
    assert [(line["policy"], line["share"]) for line in found[:3]] == [
        ("unlimited", None),
        ("lru", 0.5),
        ("lru", 1.0),
    ]
    assert found[2]["rate"] == found[0]["rate"] > found[1]["rate"]
    code, out, _ = run("simulate", str(path))
    assert "points below" in out
    assert run("simulate", str(path), "--shares", "2")[0] == 2
    assert run("simulate", str(tmp_path / "none"))[0] == 10
