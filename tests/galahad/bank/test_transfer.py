"""Adapting a banked program to other numbers, and the one cause of each failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from galahad import sandbox
from galahad.bank import transfer
from galahad.bank.bank import Bank
from galahad.bank.entry import Entry, Need, PersonSource, verified
from galahad.bank.transfer import Adapted
from galahad.problems.problem import Problem
from galahad.problems.variants import Variant
from galahad.responses import program as programs
from taliesin.errors import UsageError

ORIGIN = Problem.of("sum-7", "What is the sum of the integers from 3 to 37?", 700)
PROGRAM = "def solve(first=3, last=37):\n    return sum(range(first, last + 1))\n\nprint(solve())\n"
BAKED = "total = sum(range(3, 38))\nprint(total)\n"
BY_HAND = PersonSource(file="p.py")
VARIANT = Variant(
    Problem.of("sum-7~1", "What is the sum of the integers from 5 to 12?", 68),
    "sum-7",
    ORIGIN.sha256,
    1,
    {"first": 5, "last": 12},
    {"solve": 68},
    {},
)


def filled(folder: Path, program: str, reader: Any, prints: Any) -> tuple[Bank, Entry]:
    store = Bank(folder / "bank", create=True)
    return store, store.add(
        verified(ORIGIN, program, BY_HAND, prints("700\n")),
        reader,
        Need(solved="failed", by="a test"),
    )


def judged(ran: Any, stdout: str, status: str = "ok") -> sandbox.Verdict:
    return sandbox.judge(ran(stdout, status))


def run_here(ran: Any) -> Any:
    """Judges by what PROGRAM's shape computes, without running anything."""

    def judge(source: str) -> sandbox.Verdict:
        p = programs.parameters(source)
        value = sum(range(int(p["first"]), int(p["last"]) + 1)) if p else 700  # type: ignore[arg-type]
        return sandbox.judge(ran(f"{value}\n"))

    return judge


def test_a_call_with_the_variants_numbers_is_right(
    tmp_path: Path, scripted: Any, prints: Any, ran: Any
) -> None:
    reader = scripted(says={"new problem": ["solve(first=5, last=12)"]})
    store, _ = filled(tmp_path, PROGRAM, reader, prints)
    [row] = transfer.transfer(
        [VARIANT], store, reader, store.router(), threshold=0.1, judge=run_here(ran)
    )
    assert (row.answer, row.grade, row.cause, row.block) == (68, "right", "answer", "sum-7")
    assert row.detail["values"] == {"first": 5, "last": 12}
    assert 'root ::= "solve(" "first=" int ", " "last=" int ")"' in str(
        reader.asked[0].sampling.grammar
    )


def test_a_program_without_parameters_is_rewritten_whole(
    tmp_path: Path, scripted: Any, prints: Any, ran: Any
) -> None:
    reader = scripted(says={"new problem": [BAKED + "```"]})
    store, _ = filled(tmp_path, BAKED, reader, prints)
    [row] = transfer.transfer(
        [VARIANT], store, reader, store.router(), threshold=0.1, judge=run_here(ran)
    )
    assert (row.detail["adapt"], row.cause, row.grade) == ("program", "constant-baked-in", "wrong")
    assert transfer.by_parametric([row])["baked-in"].n == 1
    with pytest.raises(UsageError):
        list(
            transfer.transfer(
                [VARIANT], store, reader, store.router(), threshold=0.1, adapt="arguments"
            )
        )


def test_no_route_is_a_failure_with_its_cause(tmp_path: Path, scripted: Any, prints: Any) -> None:
    reader = scripted()
    store, _ = filled(tmp_path, PROGRAM, reader, prints)
    [row] = transfer.transfer([VARIANT], store, reader, store.router(), threshold=1.0)
    assert (row.grade, row.cause, row.n_out) == ("none", "no-block", 0)


RIGHT = programs.substitute(PROGRAM, {"first": 5, "last": 12})


@pytest.mark.parametrize(
    ("adapted", "stdout", "status", "cause"),
    [
        (Adapted(None, "unfinished", {}), "", "ok", "no-program"),
        (
            Adapted(PROGRAM, "program", {"first": 3, "last": 37}),
            "700\n",
            "ok",
            "constant-replaced-wrongly",
        ),
        (
            Adapted(RIGHT.replace("+ 1", "+ 5"), "program", {"first": 5, "last": 12}),
            "9\n",
            "ok",
            "constant-replaced-wrongly",
        ),
        (Adapted(RIGHT, "program", {"first": 5, "last": 12}), "", "timeout", "timeout"),
        (Adapted(RIGHT, "program", {"first": 5, "last": 12}), "", "error", "did-not-run"),
        (Adapted(RIGHT, "program", {"first": 5, "last": 12}), "9\n", "ok", "wrong-number"),
    ],
)
def test_each_failure_has_one_cause(
    prints: Any, ran: Any, adapted: Adapted, stdout: str, status: str, cause: str
) -> None:
    entry = verified(ORIGIN, PROGRAM, BY_HAND, prints("700\n"))
    verdict = judged(ran, stdout, status) if adapted.source is not None else None
    assert transfer.classify(entry, VARIANT, adapted, verdict) == cause


def test_another_problems_block_is_the_first_cause(prints: Any) -> None:
    other = Problem.of("other", "What is the sum of the integers from 3 to 36?", 663)
    entry = verified(other, PROGRAM, BY_HAND, prints("663\n"))
    assert transfer.classify(entry, VARIANT, Adapted(None, "unfinished", {}), None) == "wrong-block"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "solve(",
        "import os",
        "solve(first=open('x'))",
        "solve(n=1)",
        "solve(5, 12)(",
        "f" * 100_000,
        "(" * 5000,
    ],
)
def test_text_that_is_no_call_makes_no_program_and_runs_nothing(text: str) -> None:
    assert transfer.adapted_by_call(PROGRAM, text).source is None


@limits(max_examples=30, deadline=None)
@given(st.integers(-(10**5), 10**5), st.integers(-(10**5), 10**5))
def test_a_call_of_the_grammar_sets_exactly_its_arguments(first: int, last: int) -> None:
    made = transfer.adapted_by_call(PROGRAM, f"solve(first={first}, last={last})")
    assert made.source is not None
    assert programs.parameters(made.source) == {"first": first, "last": last}


@limits(max_examples=30, deadline=None)
@given(st.text(max_size=60))
def test_any_text_gives_a_program_or_none(text: str) -> None:
    made = transfer.adapted_by_call(PROGRAM, text)
    assert made.source is None or programs.parse(made.source) is not None


@pytest.mark.parametrize("parameters", [{}, {"x": 1.5}, {"x": "a"}, {"x": True}, {"x": None}])
def test_only_integer_parameters_make_a_grammar(parameters: dict[str, programs.Literals]) -> None:
    with pytest.raises(UsageError):
        transfer.grammar(parameters)
