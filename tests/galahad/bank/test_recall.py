"""Recall and the arms that it is compared with, their files, and what they cost."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from galahad.answerer.answerer import BlockPrefix, Request, Sampling, one
from galahad.answerer.embedded import Embedded
from galahad.bank import recall
from galahad.bank.bank import Bank
from galahad.bank.check import check
from galahad.bank.entry import Need, PersonSource, verified
from galahad.errors import BankError, SuiteError
from galahad.evidence import cost
from galahad.measure import arm
from galahad.measure.arm import Arm, Row
from galahad.measure.stats import Proportion
from galahad.problems.problem import Problem
from galahad.solve.records import SuiteRecord
from taliesin.engine.llama import Settings
from taliesin.errors import UsageError
from taliesin.store.library import Library
from tests.galahad.doubles import run_header

SUM = Problem.of("sum-7", "What is the sum of the integers from 1 to 37?", 703)
DIVISORS = Problem.of("count-9", "How many positive divisors does the number 5040 have?", 60)
POEM = Problem.of("poem", "Write some lines about rain over grey rooftops.", 1)
NOT_MEASURED: dict[str, object] = {"low": None, "high": None, "source": "not measured"}


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


# --- files of arms, and costs ---


def row(id_: str, grade: str, n_out: int, sha256: str = "", **detail: object) -> Row:
    return Row(id_, sha256, 1, 1, grade, "answer", None, 1, 0, 10, n_out, 2.0, detail)


def an_arm(kind: str, rows: list[Row], energy: dict[str, object] = NOT_MEASURED) -> Arm:
    return Arm.of(kind, {"model": "m"}, {}, rows, energy)


def test_an_arm_comes_back_from_its_file(tmp_path: Path) -> None:
    made = an_arm("recall", [row("a", "right", 3), row("b", "wrong", 2)])
    path = tmp_path / "a.json"
    made.write(path)
    assert arm.load(path) == made
    assert made.totals()["tokens_out"] == 5
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"schema": "galahad.arm/1"}', '{"schema": "galahad.arm/1", "rows": [1]}'],
)
def test_a_file_that_is_no_arm_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SuiteError):
        arm.load(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("engine", "x"),
        ("energy", []),
        ("energy", {"low": "x"}),
        ("settings", None),
        ("kind", ["recall"]),
        ("created", 1),
    ],
)
def test_an_arm_with_a_field_of_another_type_is_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    record = {
        "schema": arm.SCHEMA,
        **an_arm("recall", [row("a", "right", 3)]).as_dict(),
        field: value,
    }
    path = tmp_path / "a.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(SuiteError, match="another type"):
        arm.load(path)


@pytest.mark.parametrize(
    ("field", "value"), [("sha256", []), ("n_out", "3"), ("seconds", float("nan")), ("id", None)]
)
def test_a_row_with_a_field_of_another_type_is_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    record = an_arm("recall", [row("a", "right", 3)]).as_dict()
    record["rows"] = [{**record["rows"][0], field: value}]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schema": arm.SCHEMA, **record}), encoding="utf-8")
    with pytest.raises(SuiteError, match="another type"):
        arm.load(path)


def a_summary(**problems: str) -> Any:
    header = run_header(suite=SuiteRecord(name="s", sha256="0", problems=problems))
    return SimpleNamespace(
        run=SimpleNamespace(header=header), results=(), accuracy=Proportion.of(0, len(problems))
    )


def test_the_score_counts_no_arm_twice_and_no_recall_of_other_problems() -> None:
    recalled = an_arm("recall", [row("a", "right", 3, sha256="1")])
    adapted = an_arm("transfer", [row("a~1", "right", 3, sha256="7")])
    score = cost.system_score(a_summary(a="1", b="2"), [recalled], [adapted])
    assert (score.recovered, score.system.n) == (1, 2)
    with pytest.raises(UsageError, match="twice"):
        cost.system_score(a_summary(a="1"), [recalled], [adapted, adapted])
    with pytest.raises(SuiteError, match="other problems"):
        cost.system_score(a_summary(a="9"), [recalled], [])


def test_ratios_are_of_the_first_arm_and_joules_a_range() -> None:
    metered = {"low": 90.0, "high": 110.0, "source": "a meter"}
    baseline = cost.of_arm(
        "voting", an_arm("best-of-5", [row("a", "wrong", 900), row("b", "right", 100)], metered)
    )
    ours = cost.of_arm(
        "recall", an_arm("recall", [row("a", "right", 3), row("b", "right", 2)], metered)
    )
    told = ours.as_dict(baseline)
    assert told["tokens_ratio"] == 200
    assert told["tokens_per_point"] == pytest.approx(2.5 / 100)
    assert baseline.tokens_per_point == pytest.approx(500 / 50)
    assert told["joules_ratio"] == {"low": pytest.approx(90 / 110), "high": pytest.approx(110 / 90)}


def test_arms_of_other_sizes_are_compared_a_problem() -> None:
    metered = {"low": 90.0, "high": 110.0, "source": "a meter"}
    baseline = cost.of_arm(
        "run", an_arm("best-of-5", [row("a", "right", 10) for _ in range(4)], metered)
    )
    ours = cost.of_arm("recall", an_arm("recall", [row("a", "right", 5)], metered))
    told = ours.as_dict(baseline)
    assert told["tokens_ratio"] == pytest.approx(2)
    assert told["seconds_ratio"] == pytest.approx(1)
    assert told["joules_ratio"] == {
        "low": pytest.approx(90 / 110 / 4),
        "high": pytest.approx(110 / 90 / 4),
    }
    assert (baseline.tokens_per_point, ours.tokens_per_point) == (
        pytest.approx(0.1),
        pytest.approx(0.05),
    )


def test_transfers_over_the_same_variants_are_not_added_up() -> None:
    one, other = (an_arm("transfer", [row("a~1", "right", n, sha256="7")]) for n in (3, 4))
    score = cost.system_score(a_summary(a="1"), [], [one, other])
    assert [(transfer.k, transfer.n) for transfer in score.transfers] == [(1, 1), (1, 1)]
    assert len(score.as_dict()["transfers"]) == 2


def test_without_a_right_answer_a_point_has_no_price_and_unmeasured_joules_no_number() -> None:
    one = cost.of_arm("x", an_arm("best-of-5", [row("a", "wrong", 9)]))
    assert one.tokens_per_point is None
    assert one.joules is None
    assert one.as_dict(one)["energy"] == "not measured"
