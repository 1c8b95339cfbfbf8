"""Arms side by side: what each answer cost, and the score of the whole system.

Every figure comes from arms' files (`galahad.measure.arm`) and run logs, none is estimated. Joules
are a range because a counter is
coarse, or absent with the reason. Deliberately does not know: what a token costs in money.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from galahad.errors import SuiteError
from galahad.measure.arm import Arm
from galahad.measure.stats import Proportion
from galahad.solve.summary import Summary
from taliesin.errors import UsageError
from taliesin.host import records
from taliesin.host.findings import (
    Amount,
    Figure,
    Finding,
    Line,
    Result,
    Said,
    Seconds,
    duration,
    share,
)
from taliesin.host.records import Record

NotNegative = Annotated[float, Meta(ge=0, le=1e150, description="a finite number, 0 or more")]


@dataclass(frozen=True)
class Cost:
    """One line. `tokens_per_point`: output tokens a problem for each percentage point of accuracy,
    None at 0 %.

    `joules` is (low, high) or None, and then `energy` says why.
    """

    name: str
    n: int
    accuracy: Proportion
    tokens_out: int
    seconds: float
    joules: tuple[float, float] | None
    energy: str

    @property
    def tokens_per_problem(self) -> float:
        return self.tokens_out / self.n if self.n else 0.0

    @property
    def tokens_per_point(self) -> float | None:
        share = self.accuracy.k / self.accuracy.n if self.accuracy.n else 0.0
        return self.tokens_per_problem / (100 * share) if share else None

    def as_dict(self, first: Cost) -> dict[str, Any]:
        """JSON-ready; ratios are of what a problem cost in the first line to what it costs in this
        one, whatever their numbers.
        """
        fair = self.n / first.n if first.n else 0.0
        return {
            "name": self.name,
            "n": self.n,
            "accuracy": records.plain(self.accuracy),
            "tokens_out": self.tokens_out,
            "tokens_per_problem": self.tokens_per_problem,
            "tokens_ratio": fair * first.tokens_out / self.tokens_out if self.tokens_out else None,
            "tokens_per_point": self.tokens_per_point,
            "seconds": self.seconds,
            "seconds_ratio": fair * first.seconds / self.seconds if self.seconds else None,
            "joules": None
            if self.joules is None
            else {"low": self.joules[0], "high": self.joules[1]},
            "joules_ratio": _ratio(first.joules, self.joules, fair),
            "energy": self.energy,
        }


def _ratio(
    first: tuple[float, float] | None, second: tuple[float, float] | None, fair: float
) -> dict[str, float] | None:
    """`fair` times the range of a quotient of two ranges; None where one is missing or may be 0."""
    if first is None or second is None or second[0] <= 0:
        return None
    return {"low": fair * first[0] / second[1], "high": fair * first[1] / second[0]}


def of_arm(name: str, arm: Arm) -> Cost:
    low, high = arm.energy.low, arm.energy.high
    joules = (low, high) if low is not None and high is not None else None
    return Cost(
        name,
        len(arm.rows),
        arm.accuracy,
        arm.n_out,
        arm.seconds,
        joules,
        arm.energy.source,
    )


def of_run(name: str, summary: Summary) -> Cost:
    """A run of `galahad solve`: all its attempts."""
    return Cost(
        name,
        len(summary.results),
        summary.accuracy,
        summary.tokens_out,
        summary.seconds,
        summary.joules,
        summary.energy_source,
    )


@dataclass(frozen=True)
class SystemScore:
    """Problems that the base run got confidently right, and others whose answer came back from the
    bank.

    `system` counts both; `base` is the run alone. `transfers` are the figures for generalisation
    and stand beside it always: one for each arm, never added up, because arms share their variants;
    empty where no transfer was measured. Recovered answers were put
    into the bank before: `system` is no measure of solving.
    """

    base: Proportion
    confident_right: int
    recovered: int
    system: Proportion
    transfers: Sequence[Proportion]

    def as_dict(self) -> dict[str, Any]:
        return {
            "base": records.plain(self.base),
            "confident_right": self.confident_right,
            "recovered": self.recovered,
            "system": records.plain(self.system),
            "transfers": [records.plain(transfer) for transfer in self.transfers],
        }


def system_score(summary: Summary, recalls: Sequence[Arm], transfers: Sequence[Arm]) -> SystemScore:
    """The score of a run with what was recalled for its other problems (by hash of their text).

    Raises:
        SuiteError: a recall of problems none of which the run has. UsageError: an arm that is there
        twice, and would count so.
    """
    for arms in (recalls, transfers):
        if any(arm in arms[:number] for number, arm in enumerate(arms)):
            raise UsageError("the same arm twice", hint="the score of --run counts every file once")
    suite = set(summary.run.header.suite.problems.values())
    for arm in recalls:
        if arm.rows and suite.isdisjoint(row.sha256 for row in arm.rows):
            raise SuiteError(
                "the recall is of other problems than the base run",
                hint="--run, the run of these problems",
            )
    hashes: dict[str, str] = summary.run.header.suite.problems
    sure = {
        hashes[r.id] for r in summary.results if r.confidence == "confident" and r.grade == "right"
    }
    right = {row.sha256 for arm in recalls for row in arm.rows if row.grade == "right"}
    recovered = len((right - sure) & set(hashes.values()))
    return SystemScore(
        summary.accuracy,
        len(sure),
        recovered,
        Proportion.of(len(sure) + recovered, len(hashes)),
        [arm.accuracy for arm in transfers if arm.rows],
    )


# -- what `galahad cost` prints --------------------------------------------------------------------


class Range(Record):
    low: Figure
    high: Figure


class CostRow(Record):
    """One line (`Cost.as_dict`)."""

    name: str
    n: Amount
    accuracy: Proportion
    tokens_out: Amount
    tokens_per_problem: Figure
    tokens_ratio: Figure | None
    tokens_per_point: NotNegative | None
    seconds: Seconds
    seconds_ratio: Figure | None
    joules: Range | None
    joules_ratio: Range | None
    energy: str


class ScoreRow(Record):
    """The score of the whole system (`SystemScore.as_dict`)."""

    base: Proportion
    confident_right: Amount
    recovered: Amount
    system: Proportion
    transfers: list[Proportion]


class CostResult(Result):
    """Arms side by side."""

    SCHEMA = "galahad.cost/1"
    arms: list[CostRow]
    score: ScoreRow | None

    def findings(self, file: str) -> Iterator[Finding]:
        for arm in self.arms:
            joules, point, ratio = arm.joules, arm.tokens_per_point, arm.tokens_ratio
            yield Line(
                "C20",
                {
                    "arm": arm.name,
                    "right": share(arm.accuracy.k, arm.accuracy.n),
                    "tokens out": arm.tokens_out,
                    "a problem": f"{arm.tokens_per_problem:.1f}",
                    "a point": "-" if point is None else f"{point:.3g}",
                    "fewer a problem than the first": "-" if ratio is None else f"{ratio:.1f}x",
                    "time": duration(arm.seconds),
                    "joules": arm.energy
                    if joules is None
                    else f"{joules.low:.0f} to {joules.high:.0f}",
                },
            )
        for arm in self.arms[1:]:
            if arm.name.startswith("recall ") and arm.tokens_ratio:
                first = self.arms[0]
                yield Said(
                    "C11",
                    f"{first.name}: {first.tokens_out} tokens for "
                    f"{share(first.accuracy.k, first.accuracy.n)}; "
                    f"{arm.name}: {arm.tokens_out} tokens for "
                    f"{share(arm.accuracy.k, arm.accuracy.n)}: "
                    f"{arm.tokens_ratio:.0f}x fewer a problem",
                )
        if self.score is not None:
            score = self.score
            transfer = "; ".join(each.short for each in score.transfers) or "not measured"
            yield Said(
                "C10",
                f"system score: {score.confident_right} confident and right + "
                f"{score.recovered} recovered = "
                f"{score.system.short}; transfer, the figure for generalisation, each arm by "
                f"itself: {transfer}",
            )
