"""Raw results on what something takes: copies, listings, memory, the sandbox, the prefix cache."""

from __future__ import annotations

from collections.abc import Iterator

from taliesin.host.findings import (
    Amount,
    Figure,
    Finding,
    Machine,
    Result,
    Said,
    Seconds,
    SomeSeconds,
    duration,
)
from taliesin.host.records import Record


class Restored(Record):
    """One block of one model: how fast its bytes are placed, beside a copy of as many."""

    model: str
    model_sha256: str
    n_tokens: Amount
    stored_bytes: Amount
    written_bytes: Amount
    rounds: list[dict[str, Seconds]]
    median: dict[str, Seconds]
    fraction_of_copy_speed: Figure
    fraction_by_round: list[Figure]
    fraction_of_untouched_copy_speed: Figure


class RestoreSpeed(Result):
    """`restore_speed.py`."""

    SCHEMA = "taliesin.bench.restore-speed/1"
    machine: Machine
    results: list[Restored]

    def findings(self, file: str) -> Iterator[Finding]:
        for one in self.results:
            yield Said(
                "R1",
                f"{one.model}, {one.n_tokens} tokens: placed at "
                f"{one.fraction_of_copy_speed:.0%} of a memory copy's speed",
            )


class Saved(Record):
    """One block of one model: how long writing it takes, beside a plain durable write."""

    model: str
    model_sha256: str
    n_tokens: Amount
    file_bytes: Amount
    rounds: list[dict[str, Seconds]]
    median: dict[str, Seconds]
    ratio: Figure
    ratio_by_round: list[Figure]


class SaveSpeed(Result):
    """`save_speed.py`."""

    SCHEMA = "taliesin.bench.save-speed/1"
    machine: Machine
    results: list[Saved]

    def findings(self, file: str) -> Iterator[Finding]:
        for one in self.results:
            yield Said(
                "R2",
                f"{one.model}, {one.n_tokens} tokens: writing a block takes {one.ratio:.2f}x a "
                "plain durable write",
            )


class Listed(Record):
    """Runs of one command."""

    command: list[str]
    runs_seconds: list[Seconds]
    runs_cpu_seconds: list[Seconds]
    median_seconds: Seconds
    min_seconds: Seconds
    max_seconds: Seconds
    median_cpu_seconds: Seconds
    output_bytes: Amount
    load_average: tuple[Figure, ...] | None = None


class Commands(Record):
    """The commands that were timed; `help_quiet` once more, when the machine was quiet."""

    help: Listed
    list_without_index: Listed
    list: Listed
    list_names: Listed
    list_json: Listed
    help_quiet: Listed | None = None


class LibraryList(Result):
    """`library_list.py`."""

    SCHEMA = "taliesin.bench.library-list/1"
    version: str
    python: str
    typer: str
    system: str
    cpus: Amount
    load_average: tuple[Figure, ...] | None
    blocks: Amount
    fill_seconds: Seconds
    results: Commands

    def findings(self, file: str) -> Iterator[Finding]:
        yield Said(
            "R3",
            f"`list` of {self.blocks} blocks {duration(self.results.list.median_seconds)}, "
            f"`--help` {duration(self.results.help.median_seconds)} (medians)",
        )


class Isolated(Record):
    """Milliseconds of each way to start a program; `full` is None where it cannot be had."""

    kernel: Figure
    weak: Figure
    full: Figure | None = None


class Started(Isolated, kw_only=True):
    """And of an interpreter without isolation."""

    bare: Figure
    with_site: Figure


class SandboxOverhead(Result):
    """`sandbox_overhead.py`."""

    SCHEMA = "galahad.benchmark.sandbox_overhead/1"
    budget_ms: Figure
    median_ms: Started
    over_bare_ms: Isolated
    ratio_to_bare: Started
    within_budget: bool
    times_ms: dict[str, list[Figure]]
    rounds: Amount
    seed: int
    load_average: tuple[Figure, ...] | None
    scheduler: str
    n_cpus: Amount
    kernel: str
    machine: str
    python: str
    mechanisms: list[str]

    def findings(self, file: str) -> Iterator[Finding]:
        if self.over_bare_ms.full is not None:
            yield Said(
                "R4",
                f"a sandboxed start costs {self.over_bare_ms.full:.1f} ms over a bare "
                f"interpreter's {self.median_ms.bare:.1f} ms (medians)",
            )


class Grafts(Record):
    """Peak bytes of a process, with and without a graft, of one block of one model."""

    model: str
    model_sha256: str
    n_tokens: Amount
    block_bytes: Amount
    peak_bytes_by_round: list[dict[str, Amount]]
    median_peak_bytes: dict[str, Figure]
    extra_bytes: Figure
    extra_by_block: Figure


class GraftMemory(Result):
    """`graft_memory.py`."""

    SCHEMA = "taliesin.bench.graft-memory/1"
    machine: Machine
    results: list[Grafts]

    def findings(self, file: str) -> Iterator[Finding]:
        for one in self.results:
            yield Said(
                "R5",
                f"{one.model}, {one.n_tokens} tokens: a graft adds {one.extra_by_block:.2f}x its "
                "block's bytes to the peak",
            )


class CachedRequest(Record):
    """One request, with the cache and cold."""

    prompt_tokens: Amount
    reused_tokens: Amount
    place: str
    vectors: Amount
    equal: Amount
    warm_seconds: Seconds
    cold_seconds: Seconds


class CachedModel(Record):
    """All requests of one model; the fields are sums over them."""

    model: str
    model_sha256: str
    n_ubatch: Amount
    prompt_tokens: Amount
    reused_tokens: Amount
    vectors: Amount
    equal: Amount
    warm_seconds: SomeSeconds
    cold_seconds: SomeSeconds
    requests: list[CachedRequest]


class PrefixCache(Result):
    """`prefix_cache.py`."""

    SCHEMA = "taliesin.bench.prefix-cache/1"
    machine: Machine
    results: list[CachedModel]

    def findings(self, file: str) -> Iterator[Finding]:
        for one in self.results:
            reused = one.reused_tokens / max(one.prompt_tokens, 1)
            yield Said(
                "R7",
                f"{one.model}, pieces of {one.n_ubatch}: {one.equal} of {one.vectors} logits "
                f"vectors equal to a cold run's; {reused:.1%} of the prompt tokens reused; cold "
                f"prefill took {one.cold_seconds / one.warm_seconds:.2f}x the time",
            )
