"""What an answer cost, arm beside arm, and the score of the whole system."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from galahad.errors import SuiteError
from galahad.evidence import cost
from galahad.measure.stats import Proportion
from galahad.solve.records import SuiteRecord
from taliesin.errors import UsageError
from tests.galahad.doubles import an_arm, reading, run_header
from tests.galahad.doubles import arm_row as row

METERED = reading(joules=100.0, low=90.0, high=110.0, source="a meter")


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
    baseline = cost.of_arm(
        "voting", an_arm("best-of-5", [row("a", "wrong", 900), row("b", "right", 100)], METERED)
    )
    ours = cost.of_arm(
        "recall", an_arm("recall", [row("a", "right", 3), row("b", "right", 2)], METERED)
    )
    told = ours.as_dict(baseline)
    assert told["tokens_ratio"] == 200
    assert told["tokens_per_point"] == pytest.approx(2.5 / 100)
    assert baseline.tokens_per_point == pytest.approx(500 / 50)
    assert told["joules_ratio"] == {"low": pytest.approx(90 / 110), "high": pytest.approx(110 / 90)}


def test_arms_of_other_sizes_are_compared_a_problem() -> None:
    baseline = cost.of_arm(
        "run", an_arm("best-of-5", [row("a", "right", 10) for _ in range(4)], METERED)
    )
    ours = cost.of_arm("recall", an_arm("recall", [row("a", "right", 5)], METERED))
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
