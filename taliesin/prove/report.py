"""What a verification found: `VerifyReport`, one shape for every engine.

An engine that gives logits counts equal logits vectors; a llama-server gives the best
log-probabilities of each step, and those are counted instead. `level` says which it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from taliesin.host.findings import (
    Amount,
    Finding,
    Line,
    Machine,
    Result,
    Said,
    Seconds,
    device,
    recipe_of,
)
from taliesin.host.records import Record, plain
from taliesin.prove.equivalence import Statistics


class VerifyRow(Record):
    """Equality of one query length over all trials: of `n_vectors` compared, how many are equal,
    and where the first difference is (step, 0 = right after the query).

    n_reused, n_evaluated: prompt tokens as a server counted them; tokens_block_then_query,
    tokens_one_shot: how many steps chose the same token. None where that was not compared, or
    follows from equal logits.
    """

    query_tokens: Amount
    n_vectors: Amount
    equal_block_then_query: Amount
    equal_one_shot: Amount | None = None
    first_difference: int | None = None
    n_reused: int | None = None
    n_evaluated: int | None = None
    tokens_block_then_query: int | None = None
    tokens_one_shot: int | None = None


class VerifyReport(Result):
    """What `verify` found. `exact` is the verdict at `level`: everything equals the reference that
    the block promises, and the engine's own options are exact ones.

    name: what the block was called; inexact: why the engine or the graft is not exact;
    one_shot_holds: None if not compared; statistics: None where there are no logits; seconds:
    median, block prefill (or graft) and query; sabotage: how the graft was broken on purpose.
    """

    SCHEMA = "taliesin.verify/2"

    name: str
    engine: Literal["embedded", "server"]
    level: str
    block_id: str
    title: str
    n_tokens: Amount
    promise: str
    trials: Amount
    n_steps: Amount
    rows: list[VerifyRow]
    block_then_query_holds: bool
    one_shot_holds: bool | None
    statistics: Statistics | None
    fresh_seconds: float
    graft_seconds: float
    sabotage: str | None
    recipe: dict[str, Any]
    inexact: list[str]
    exact: bool

    def findings(self, file: str) -> Iterator[Finding]:
        yield from equal_vectors(recipe_of(self.recipe).model, [self])

    def named(self, name: str) -> VerifyReport:
        """The same report under the name that the block was asked for by."""
        return msgspec.structs.replace(self, name=name)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        fields: dict[str, Any] = plain(self)
        return fields


class Verdict(NamedTuple):
    """What follows from the rows of a report; `one_shot` is None where it was not compared."""

    block_then_query: bool
    one_shot: bool | None
    exact: bool


def judged(rows: Sequence[VerifyRow], promise: str, inexact: Sequence[str] = ()) -> Verdict:
    """Whether every row equals its references, and so the block its `promise`."""
    block_then_query = all(row.equal_block_then_query == row.n_vectors for row in rows)
    compared = all(row.equal_one_shot is not None for row in rows)
    one_shot = all(row.equal_one_shot == row.n_vectors for row in rows) if compared else None
    exact = not inexact and block_then_query and (promise != "one-shot" or bool(one_shot))
    return Verdict(block_then_query, one_shot, exact)


# -- raw results -----------------------------------------------------------------------------------


class VerifyReportV1(Result):
    """What `verify` found before it named the engine; the embedded engine's alone."""

    SCHEMA = "taliesin.verify/1"
    block_id: str
    title: str
    n_tokens: Amount
    promise: str
    trials: Amount
    n_steps: Amount
    rows: list[VerifyRow]
    block_then_query_holds: bool
    one_shot_holds: bool | None
    statistics: Statistics | None
    fresh_seconds: Seconds
    graft_seconds: Seconds
    sabotage: str | None
    recipe: dict[str, Any]
    exact: bool
    name: str = ""
    inexact: tuple[str, ...] = ()
    engine: Literal["embedded"] = "embedded"

    def findings(self, file: str) -> Iterator[Finding]:
        yield from equal_vectors(recipe_of(self.recipe).model, [self])


class ShiftRow(Record):
    """One distance of `taliesin shift`; the fields are `taliesin.prove.shift.Shifted`'s."""

    by: Amount
    moved: Statistics
    control: Statistics
    bit_equal: Amount
    statement: str


class ShiftReport(Result):
    """What `taliesin shift` prints."""

    SCHEMA = "taliesin.shift/1"
    block_id: str
    title: str
    n_tokens: Amount
    recipe: dict[str, Any]
    shifts: list[ShiftRow]

    def findings(self, file: str) -> Iterator[Finding]:
        yield from moved(self.recipe, None, self.shifts)


def moved(
    recipe: dict[str, Any], machine: Machine | None, shifts: Sequence[ShiftRow]
) -> Iterator[Finding]:
    """The sentence of each distance."""
    kept = recipe_of(recipe)
    for shift in shifts:
        yield Said("C3", f"{kept.model}, {device(machine, kept)}: {shift.statement}")


def equal_vectors(
    model: str, reports: Sequence[VerifyReport | VerifyReportV1]
) -> Iterator[Finding]:
    """Counts of equal vectors over reports of the verifier."""
    if not reports:
        return
    sizes = [report.n_tokens for report in reports]
    cells: dict[str, object] = {
        "model": model,
        "device": ", ".join(recipe_of(reports[0].recipe).devices or []) or "CPU",
        "blocks of tokens": ", ".join(map(str, sorted(sizes)))
        if len(sizes) < 4
        else f"{min(sizes)} to {max(sizes)}",
        "trials": max(report.trials for report in reports),
    }
    served = any(report.engine == "server" for report in reports)
    if served:  # HTTP gives no logits: see the report's `level`
        cells["device"] = f"{cells['device']}, llama-server"
    broken = {report.sabotage for report in reports if report.sabotage}
    of_promise = [report for report in reports if report.promise == "one-shot"]
    for promise, counts in (
        (
            "block, then query",
            [(row.equal_block_then_query, row.n_vectors) for r in reports for row in r.rows],
        ),
        (
            "one-shot prompt",
            [
                (row.equal_one_shot, row.n_vectors)
                for r in of_promise
                for row in r.rows
                if row.equal_one_shot is not None
            ],
        ),
    ):
        if counts:
            equal, n = sum(equal for equal, _ in counts), sum(n for _, n in counts)
            yield Line(
                "C1",
                {
                    **cells,
                    "equal to": promise,
                    "vectors equal": f"{equal} of {n}" + (" (log-probabilities)" * served),
                    "broken on purpose": ", ".join(sorted(broken)) or "-",
                },
            )
    found = [r.statistics for r in reports if r.statistics is not None and r.statistics.n]
    n = sum(s.n for s in found)
    if n and not broken:
        p = [s.mann_whitney_p for s in found if s.mann_whitney_p is not None]
        worst = (
            max(s.kl_median for s in found),
            max(s.kl_p99 for s in found),
            max(s.kl_max for s in found),
        )
        yield Line(
            "C2",
            {
                "model": model,
                "device": cells["device"],
                "samples": n,
                "KL median, p99, max": ", ".join(f"{value:.3g}" for value in worst),
                "argmax agreement": f"{sum(s.argmax_agreement * s.n for s in found) / n:.1%}",
                "smallest Mann-Whitney p": f"{min(p):.3g}" if p else "-",
            },
        )
