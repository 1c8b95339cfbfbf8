"""`galahad bank`, `recall`, `transfer`, `isomorph` and `cost` as a shell sees them: exit code,
stdout and stderr apart.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from galahad import sandbox
from galahad.cli import bank as bank_cli
from galahad.cli import main
from galahad.cli import recall as recall_cli
from galahad.problems import load as problems
from galahad.problems.problem import Problem

SUM = Problem.of("sum-7", "What is the sum of the integers from 3 to 37?", 700)
PROGRAM = "def solve(first=3, last=37):\n    return sum(range(first, last + 1))\n\nprint(solve())\n"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def reader(scripted: Any) -> Any:
    return scripted(says={None: ["\\boxed{1}"]})


@pytest.fixture
def galahad(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reader: Any, tmp_path: Path
) -> Iterator[Callable[..., Done]]:
    """The command in this process and in an own folder, its model scripted."""
    if sandbox.probe().level == "weak":
        pytest.skip("this host cannot isolate a program")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bank_cli, "open_reader", lambda *_arguments: reader)
    monkeypatch.setattr(recall_cli, "open_reader", lambda *_arguments: reader)
    problems.write([SUM], tmp_path / "p.jsonl")
    (tmp_path / "sum.py").write_text(PROGRAM, encoding="utf-8")

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["galahad", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    previous = signal.getsignal(signal.SIGTERM)
    yield call
    signal.signal(signal.SIGTERM, previous)


Galahad = Callable[..., Done]
ADD = ("bank", "add", "p.jsonl", "--bank", "b", "--program", "sum.py")


def test_what_nobody_measured_is_refused_and_a_measured_failure_banked(galahad: Galahad) -> None:
    refused = galahad(*ADD)
    assert refused.returncode == 41
    assert "nobody measured" in refused.stderr
    assert refused.stdout == ""
    done = galahad(*ADD, "--measure", "64", "--json")
    assert done.returncode == 0, done.stderr
    [line] = json.loads(done.stdout)["problems"]
    assert (line["status"], line["parametric"]) == ("banked", True)
    assert line["provenance"] == {"source": "person", "file": "sum.py"}
    assert line["verification"]["level"] in ("full", "kernel")


def test_what_the_model_solves_is_refused_unless_forced(galahad: Galahad, reader: Any) -> None:
    reader.says = {None: ["\\boxed{700}"]}
    refused = galahad(*ADD, "--measure", "64")
    assert refused.returncode == 41
    assert "already solves" in refused.stderr
    assert galahad(*ADD, "--force").returncode == 0


def test_a_program_with_another_answer_is_refused(galahad: Galahad) -> None:
    Path("sum.py").write_text("print(699)\n", encoding="utf-8")
    refused = galahad(*ADD, "--force")
    assert refused.returncode == 41
    assert "refuted" in refused.stderr
    assert galahad("bank", "list", "--bank", "b").stdout.count("\n") == 1


def test_the_bank_is_listed_shown_checked_and_emptied(galahad: Galahad) -> None:
    assert galahad(*ADD, "--force").returncode == 0
    assert "sum-7" in galahad("bank", "list", "-b", "b").stdout
    shown = json.loads(galahad("bank", "show", "sum-7", "-b", "b", "--json").stdout)
    assert shown["program"] == PROGRAM
    assert galahad("bank", "check", "-b", "b").returncode == 0
    assert galahad("bank", "check", "-b", "b", "--certify").returncode == 0
    assert galahad("bank", "lint", "-b", "b").returncode == 0
    assert galahad("bank", "rm", "sum-7", "-b", "b").returncode == 2
    assert galahad("bank", "rm", "sum-8", "-b", "b", "--yes").returncode == 41
    assert galahad("bank", "rm", "sum-7", "-b", "b", "--yes").returncode == 0
    assert galahad("bank", "show", "sum-7", "-b", "b").returncode == 41


def test_recall_keeps_its_rows_for_cost(galahad: Galahad, reader: Any) -> None:
    assert galahad(*ADD, "--force").returncode == 0
    reader.says = {f"sum-7@{reader.model_sha256[:12]}": ["700"], None: ["\\boxed{1}"]}
    assert "right 1/1" in galahad("recall", "p.jsonl", "-b", "b", "--out", "r.json").stderr
    assert (
        galahad("recall", "p.jsonl", "--no-bank", "--best-of", "5", "--out", "v.json").returncode
        == 0
    )
    told = json.loads(galahad("cost", "v.json", "r.json", "--json").stdout)
    assert [one["accuracy"]["k"] for one in told["arms"]] == [0, 1]
    assert told["arms"][1]["tokens_ratio"] == pytest.approx(45 / 3)


@pytest.mark.parametrize(
    "options",
    [
        ("--merged", "--no-bank"),
        ("-b", "b", "--best-of", "5"),
        ("--no-bank", "--best-of", "2", "--card", "c"),
        (),
    ],
)
def test_options_that_contradict_are_refused(galahad: Galahad, options: tuple[str, ...]) -> None:
    assert galahad("recall", "p.jsonl", *options).returncode == 2


def test_routing_is_measured_and_a_confusion_is_no(galahad: Galahad) -> None:
    assert galahad(*ADD, "--force").returncode == 0
    Path("q.txt").write_text("Which birds sleep on the wing?\n", encoding="utf-8")
    assert galahad("bank", "route", "p.jsonl", "-b", "b", "--outside", "q.txt").returncode == 0
    assert galahad(
        "bank", "route", "p.jsonl", "-b", "b", "--outside", "q.txt", "--threshold", "0"
    ).returncode in (0, 3)


def test_isomorph_without_programs_for_a_problem_is_one_clear_error(galahad: Galahad) -> None:
    refused = galahad("isomorph", "p.jsonl")
    assert refused.returncode == 40
    assert "no programs for sum-7" in refused.stderr


@pytest.mark.parametrize("command", [("bank", "list"), ("bank", "check"), ("recall", "p.jsonl")])
def test_a_missing_bank_is_one_clear_error(galahad: Galahad, command: tuple[str, ...]) -> None:
    refused = galahad(*command, "-b", "none")
    assert refused.returncode == 41
    assert refused.stderr.startswith("error: no bank there")
