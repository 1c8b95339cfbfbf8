"""What `taliesin bench` and `taliesin needle` print and keep, as types with their readers.

Deliberately does not know: how it is measured (`bench`, `needle`); a report can be read where no
engine is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from taliesin.host.findings import (
    Amount,
    Figure,
    Finding,
    Line,
    Machine,
    Result,
    Said,
    Seconds,
    SomeSeconds,
    device,
    duration,
    recipe_of,
)
from taliesin.host.records import Record


class BenchSample(Record):
    """One timed run (`bench.Sample`)."""

    seconds: SomeSeconds
    read_seconds: Seconds
    place_seconds: Seconds
    n_vectors: Amount
    n_equal: Amount
    cached_before: Figure | None


class BenchLine(Record):
    """One mode at one length. `speedup` is None where a run was not exact; spreads are [smallest,
    largest], None for a single run.
    """

    n_tokens: Amount
    mode: str
    exact: bool
    median_seconds: SomeSeconds
    spread_seconds: tuple[SomeSeconds, SomeSeconds] | None
    speedup: Figure | None
    speedup_spread: tuple[Figure, Figure] | None
    stored_bytes: Amount
    written_bytes: Amount
    place_gb_per_second: Figure | None
    copy_gb_per_second: Figure | None
    samples: list[BenchSample]
    limit_gb_per_second: Figure | None = None
    floor_seconds: Seconds | None = None


class BenchResult(Result):
    """Fresh prefill against graft from each tier."""

    SCHEMA = "taliesin.bench/1"
    query_tokens: Amount
    check_steps: Amount
    machine: Machine
    recipe: dict[str, Any]
    rows: list[BenchLine]
    break_even_tokens: dict[str, Figure | None]

    def by_length(self) -> dict[int, dict[str, BenchLine]]:
        """Length -> mode -> row, in order of length."""
        lengths: dict[int, dict[str, BenchLine]] = {}
        for row in sorted(self.rows, key=lambda row: row.n_tokens):
            lengths.setdefault(row.n_tokens, {})[row.mode] = row
        return lengths

    def findings(self, file: str) -> Iterator[Finding]:
        recipe = recipe_of(self.recipe)
        where = device(self.machine, recipe)
        lengths = self.by_length()
        for n_tokens, modes in lengths.items():
            if "fresh" not in modes or len(modes) < 2 or n_tokens < 512:
                continue
            fresh = modes["fresh"]
            speedups = {
                name: row.speedup
                for name, row in modes.items()
                if name != "fresh" and row.speedup is not None
            }
            exact = all(row.exact for row in modes.values())
            cells: dict[str, object] = {"model": recipe.model, "device": where, "tokens": n_tokens}
            cells["prefill"] = duration(fresh.median_seconds)
            cells |= {
                name: f"{speedups[name]:.1f}x" if name in speedups else "-"
                for name in modes
                if name != "fresh"
            }
            yield Line("C5", {**cells, "exact": "yes" if exact else "NO", "n": len(fresh.samples)})
            if n_tokens == max(lengths) and exact and speedups:
                best = max(speedups, key=lambda name: speedups[name])
                yield Said(
                    "C4",
                    f"{n_tokens} tokens, {recipe.model}, {where}: prefill "
                    f"{duration(fresh.median_seconds)}, {best} "
                    f"{duration(modes[best].median_seconds)} = {speedups[best]:.1f}x",
                )


class NeedleRead(Record):
    """One question (`needle.Read`)."""

    depth: Amount
    block: Amount
    routed: str | None
    expected: str
    answer: str
    correct: bool
    tier: str | None
    route_seconds: Seconds
    graft_seconds: Seconds
    answer_seconds: Seconds
    seconds: Seconds


class NeedleSlope(Record):
    """`needle.Slope`."""

    seconds_per_million: Figure
    low: Figure
    high: Figure


class NeedleResult(Result):
    """Numbers read back from a corpus longer than any context."""

    SCHEMA = "taliesin.needle/1"
    n_tokens: Amount
    n_blocks: Amount
    block_tokens: Amount
    n_ctx_train: Amount
    library_bytes: Amount
    saved_blocks: Amount
    reused_blocks: Amount
    save_seconds: Seconds
    reads: list[NeedleRead]
    slope: NeedleSlope | None
    peak_bytes: Amount
    gpu_bytes: Amount | None
    n_correct: Amount
    machine: Machine
    model: str
    seed: int

    def findings(self, file: str) -> Iterator[Finding]:
        seconds = [read.seconds for read in self.reads]
        if seconds:
            yield Said(
                "C7",
                f"{self.n_tokens} tokens in {self.n_blocks} blocks: {self.n_correct} of "
                f"{len(self.reads)} needles read back, {duration(min(seconds))} to "
                f"{duration(max(seconds))} each",
            )
