"""Recall and the arms that it is compared with, their files, and what they cost."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from galahad.answerer.answerer import BlockPrefix, Request, Sampling, one
from galahad.answerer.embedded import Embedded
from galahad.bank import recall
from galahad.bank.bank import Bank
from galahad.bank.check import check
from galahad.bank.entry import Need, PersonSource, verified
from galahad.errors import BankError
from galahad.problems.problem import Problem
from taliesin.engine.llama import Settings
from taliesin.store.library import Library

SUM = Problem.of("sum-7", "What is the sum of the integers from 1 to 37?", 703)
DIVISORS = Problem.of("count-9", "How many positive divisors does the number 5040 have?", 60)
POEM = Problem.of("poem", "Write some lines about rain over grey rooftops.", 1)


@pytest.fixture
def filled(tmp_path: Path, scripted: Any, prints: Any) -> Bank:
    """A bank of two problems for the scripted model."""
    store = Bank(tmp_path / "bank", create=True)
    for problem, program in ((SUM, "print(sum(range(38)))\n"), (DIVISORS, "print(60)\n")):
        entry = verified(problem, program, PersonSource(file="p.py"), prints(f"{problem.answer}\n"))
        store.add(entry, scripted(), Need(solved="failed", by="a test"))
    return store


def block(id_: str, reader: Any) -> str:
    return f"{id_}@{reader.model_sha256[:12]}"


def test_a_problem_is_routed_to_its_block_and_the_answer_read_under_a_grammar(
    filled: Bank, scripted: Any
) -> None:
    reader = scripted()
    reader.says = {block("sum-7", reader): ["703"], block("count-9", reader): ["60"]}
    rows = list(recall.routed([SUM, DIVISORS], filled, reader, filled.router(), threshold=0.5))
    assert [(r.id, r.block, r.answer, r.grade, r.n_out) for r in rows] == [
        ("sum-7", "sum-7", 703, "right", 3),
        ("count-9", "count-9", 60, "right", 2),
    ]
    assert {one.sampling.grammar for one in reader.asked} == {recall.DIGITS}
    assert {one.opening for one in reader.asked} == {recall.OPENING}
    assert all(SUM.problem not in one.question for one in reader.asked)
    assert rows[0].n_reused == 100


def test_the_router_abstains_where_no_entry_fits_and_nothing_is_asked(
    filled: Bank, scripted: Any
) -> None:
    reader = scripted()
    [row] = recall.routed([POEM], filled, reader, filled.router(), threshold=0.5)
    assert (row.answer, row.grade, row.cause, row.n_out, row.n_attempts) == (
        None,
        "none",
        "abstained",
        0,
        0,
    )
    assert reader.asked == []


def test_another_problems_block_is_named_as_such(filled: Bank, scripted: Any) -> None:
    reader = scripted()
    reader.says = {block("sum-7", reader): ["703"]}
    variant = Problem.of("sum-8", "What is the sum of the integers from 1 to 38?", 741)
    [row] = recall.routed([variant], filled, reader, filled.router(), threshold=0.5)
    assert (row.cause, row.grade) == ("wrong-block", "wrong")


def test_a_bank_without_blocks_of_the_model_is_refused(filled: Bank, scripted: Any) -> None:
    with pytest.raises(BankError, match="no block of this model"):
        list(recall.routed([SUM], filled, scripted(model="bigger"), filled.router(), threshold=0.5))


def test_merged_puts_all_entries_in_one_prefix_and_tells_another_problems_answer(
    filled: Bank, scripted: Any
) -> None:
    reader = scripted(says={SUM.problem: ["60"], DIVISORS.problem: ["60"]})
    rows = list(recall.merged([SUM, DIVISORS], filled, reader))
    assert [(r.cause, r.grade) for r in rows] == [
        ("another-problems-answer", "wrong"),
        ("answer", "right"),
    ]
    with filled.library.open(f"merged@{reader.model_sha256[:12]}") as merged:
        assert SUM.problem in merged.header.text
        assert DIVISORS.problem in merged.header.text
    assert check(filled, verify=None) == []


def test_direct_and_card_ask_without_a_block(scripted: Any) -> None:
    reader = scripted(says={None: ["12"], "method": ["Step 1 ... \\boxed{703}"]})
    [plain] = recall.direct([SUM], reader)
    [told] = recall.card([SUM], reader, "Follow this method.", max_tokens=64)
    assert (plain.answer, plain.grade) == (12, "wrong")
    assert (told.answer, told.grade) == (703, "right")
    assert all(one.prefix is None for one in reader.asked)


def test_best_of_answers_by_majority_and_keeps_whether_any_was_right(scripted: Any) -> None:
    reader = scripted(
        says={None: ["\\boxed{1}", "\\boxed{703}", "\\boxed{1}", "nothing", "nothing"]}
    )
    [row] = recall.best_of([SUM], reader, 5, max_tokens=64, temperature=0.7, seed=3)
    assert (row.answer, row.grade, row.n_attempts) == (1, "wrong", 5)
    assert row.detail["any_right"]
    assert len({one.sampling.seed for one in reader.asked}) == 5
    assert row.n_out == sum(one["n_out"] for one in row.detail["attempts"])


def test_an_answer_cut_off_is_no_answer(scripted: Any) -> None:
    [row] = recall.best_of(
        [SUM], scripted(says={None: ["long " * 20]}), 1, max_tokens=8, temperature=0, seed=0
    )
    assert (row.answer, row.detail["attempts"][0]["cause"]) == (None, "cut-off")


@pytest.mark.native
def test_a_real_model_reads_digits_only_from_a_grafted_block(smollm2: Path, tmp_path: Path) -> None:
    with (
        contextlib.closing(Embedded(model=str(smollm2), settings=Settings(n_threads=1))) as model,
        Library(tmp_path / "library") as library,
    ):
        saved = model.save(library, "x", "Verified answer: 703", "x")
        request = Request(
            prefix=BlockPrefix(library, "x"),
            question=recall.QUESTION,
            max_tokens=4,
            sampling=Sampling(grammar=recall.DIGITS),
            opening=recall.OPENING,
        )
        first, again = one(model, request), one(model, request)
    assert first.text == again.text == f"{recall.OPENING}703"
    assert 1 <= first.n_out == again.n_out <= 3
    assert first.n_reused == saved.n_tokens
    assert (first.label, first.recipe["model_sha256"]) == ("embedded, grafted", saved.model_sha256)
