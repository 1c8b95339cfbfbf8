"""The raw result of the router's calibration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from taliesin.host.findings import (
    Amount,
    Figure,
    Finding,
    Fraction,
    Machine,
    Result,
    Said,
    Seconds,
    share,
)
from taliesin.host.records import Record

Interval = Annotated[tuple[Fraction, Fraction], Meta(description="a Wilson interval, [low, high]")]


class Hits(Record):
    """So many of so many."""

    right: Amount
    of: Amount
    wilson_95: Interval

    def __str__(self) -> str:
        return share(self.right, self.of)


class Routed(Record):
    """One set of questions."""

    inside_routed_right: Hits
    inside_routed_wrong: Amount
    outside_abstained: Hits


class Calibrated(Routed):
    """The set that the threshold was chosen on."""

    mistakes: Amount


class RouterSize(Routed):
    """The same with more blocks, and what a query takes."""

    blocks: Amount
    build_seconds: Seconds
    query_median_ms: Figure
    query_p99_ms: Figure
    query_max_ms: Figure


class AskedQuestion(Record):
    """One question, and where it went."""

    question: str
    kind: str
    held_in: bool
    answer: str | None
    best: str | None
    coverage: Figure
    routed: str | None


class RouterCalibration(Result):
    """`router_calibration.py`."""

    SCHEMA = "taliesin.bench.router-calibration/1"
    threshold_calibrated: Figure
    threshold_used: Figure
    held_in: Calibrated
    held_out: Routed
    sizes: list[RouterSize]
    machine: Machine
    questions: list[AskedQuestion]

    def findings(self, file: str) -> Iterator[Finding]:
        for name, part in (("held in", self.held_in), ("held out", self.held_out)):
            low, high = part.inside_routed_right.wilson_95
            yield Said(
                "C15",
                f"{name}: {part.inside_routed_right} routed right "
                f"(Wilson 95 %: {low:.1%} to {high:.1%}), "
                f"{part.inside_routed_wrong} routed wrong, "
                f"{part.outside_abstained} abstained outside",
            )
