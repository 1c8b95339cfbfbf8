"""Fresh prefill against graft, from each tier: seconds, bytes, and whether every timed graft was
exact.

One run, alternating: in each repeat the fresh prefill is timed first and then each graft, so that a
machine that slows down slows
both. Timed from the request to the logits after `query_tokens` more tokens: opening the file,
checking the recipe and reading are in, hashing the logits is not. After each timed run
`check_steps` greedy steps follow, untimed; every vector of every run must have the SHA-256 of the
fresh run's, or the mode is marked and counts for nothing (one vector is not enough:
docs/exactness.md, F4).

Deliberately does not know: whether another process is busy. It records the load average before and
after.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from taliesin.engine import certificate, llama, staging
from taliesin.engine.backend import Grafted
from taliesin.engine.embedded import Engine, InContext
from taliesin.engine.save import save_tokens
from taliesin.engine.tiers import Tiers
from taliesin.errors import UsageError
from taliesin.host import console, machine, pagecache, pagelock
from taliesin.measure import plots
from taliesin.store.library import Library, Policy

Mode = Literal[
    "disk, cold, hashed", "disk, cold", "disk, warm, hashed", "disk, warm", "memory", "resident"
]
MODES: tuple[Mode, ...] = (
    "disk, cold, hashed",
    "disk, cold",
    "disk, warm, hashed",
    "disk, warm",
    "memory",
    "resident",
)

LENGTHS = (748, 5977, 11994)
"""Tokens of the blocks that the paper timed."""

SMALL_LENGTHS = (8, 32, 128, 512)
"""Lengths measured besides, for the break-even."""

_ENOUGH = 1 << 62  # a budget that nothing exceeds


class Sample(NamedTuple):
    """One timed run. Seconds are wall time; `read_seconds` and `place_seconds` are parts of
    `seconds`.
    """

    seconds: float
    read_seconds: float
    place_seconds: float
    n_vectors: int
    n_equal: int
    cached_before: float | None  # of the block's file, in the kernel's page cache


@dataclass
class BenchRow:
    """One mode at one length; `mode` is "fresh" or one of `MODES`."""

    n_tokens: int
    mode: str
    samples: list[Sample] = field(default_factory=list)
    stored_bytes: int = 0
    written_bytes: int = 0
    # a plain copy of `written_bytes`, measured beside
    copy_seconds: list[float] = field(default_factory=list)
    limit_seconds: list[float] = field(
        default_factory=list
    )  # the same from page-locked memory to the GPU, where there is one

    @property
    def exact(self) -> bool:
        return all(s.n_equal == s.n_vectors for s in self.samples)

    @property
    def median(self) -> float:
        return statistics.median(s.seconds for s in self.samples)

    @property
    def spread(self) -> tuple[float, float] | None:
        """Smallest and largest; None for a single run."""
        if len(self.samples) < 2:
            return None
        seconds = [s.seconds for s in self.samples]
        return min(seconds), max(seconds)


@dataclass
class BenchReport:
    """Everything measured: rows in order of length, "fresh" first."""

    rows: list[BenchRow]
    query_tokens: int
    check_steps: int
    machine: dict[str, Any]
    recipe: dict[str, Any]

    @property
    def lengths(self) -> list[int]:
        return sorted({row.n_tokens for row in self.rows})

    def row(self, n_tokens: int, mode: str) -> BenchRow:
        return next(row for row in self.rows if row.n_tokens == n_tokens and row.mode == mode)

    def speedup(self, row: BenchRow) -> float | None:
        """Fresh median over this mode's; None for a row that is not exact."""
        return self.row(row.n_tokens, "fresh").median / row.median if row.exact else None

    def floor(self, row: BenchRow) -> float | None:
        """Seconds that a graft to a GPU cannot go below: its bytes at the limit, and the token as
        the resident tier decodes it.
        """
        if not row.limit_seconds or "resident" not in self.modes:
            return None
        return statistics.median(row.limit_seconds) + self.row(row.n_tokens, "resident").median

    def ratios(self, row: BenchRow) -> list[float]:
        """Fresh seconds over this mode's, repeat by repeat; empty for a row that is not exact."""
        fresh = self.row(row.n_tokens, "fresh")
        if not row.exact:
            return []
        return [f.seconds / s.seconds for f, s in zip(fresh.samples, row.samples, strict=True)]

    def break_even(self, mode: str) -> float | None:
        """Tokens from which a graft is faster than a fresh prefill, interpolated between measured
        lengths.

        0 if it is at every length measured; None if at none, or if a row is not exact.
        """
        gains = []
        for n in self.lengths:
            row = self.row(n, mode)
            if not row.exact:
                return None
            gains.append((n, self.row(n, "fresh").median - row.median))
        if gains[-1][1] <= 0:
            return None
        point = 0.0
        for (n0, g0), (n1, g1) in pairwise(gains):
            if g0 <= 0 < g1:
                point = n0 + (n1 - n0) * -g0 / (g1 - g0)
        return point

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, every sample included."""
        rows = []
        for row in self.rows:
            ratios = self.ratios(row)
            place = [s.place_seconds for s in row.samples if s.place_seconds > 0]
            rows.append(
                {
                    "n_tokens": row.n_tokens,
                    "mode": row.mode,
                    "exact": row.exact,
                    "median_seconds": row.median,
                    "spread_seconds": row.spread,
                    "speedup": self.speedup(row),
                    "speedup_spread": [min(ratios), max(ratios)] if len(ratios) > 1 else None,
                    "stored_bytes": row.stored_bytes,
                    "written_bytes": row.written_bytes,
                    "place_gb_per_second": row.written_bytes / statistics.median(place) / 1e9
                    if place
                    else None,
                    "copy_gb_per_second": row.written_bytes
                    / statistics.median(row.copy_seconds)
                    / 1e9
                    if row.copy_seconds
                    else None,
                    "limit_gb_per_second": row.written_bytes
                    / statistics.median(row.limit_seconds)
                    / 1e9
                    if row.limit_seconds
                    else None,
                    "floor_seconds": self.floor(row) if row.mode != "resident" else None,
                    "samples": [s._asdict() for s in row.samples],
                }
            )
        return {
            "query_tokens": self.query_tokens,
            "check_steps": self.check_steps,
            "machine": self.machine,
            "recipe": self.recipe,
            "rows": rows,
            "break_even_tokens": {mode: self.break_even(mode) for mode in self.modes},
        }

    @property
    def modes(self) -> list[str]:
        return [mode for mode in dict.fromkeys(row.mode for row in self.rows) if mode != "fresh"]


@dataclass
class Bench:
    """Times fresh prefills and grafts with one engine.

    Args:
        query_tokens: decoded after the block within the timed part.
        check_steps: greedy steps after that, hashed and not timed.
        folder: where the blocks are written; a temporary folder if None, removed afterwards.
        seed: of the token ids.
    """

    engine: Engine
    repeats: int = 5
    warm_up: int = 1
    query_tokens: int = 1
    check_steps: int = 7
    modes: Sequence[Mode] = MODES
    folder: Path | None = None
    seed: int = 0

    def run(
        self,
        lengths: Sequence[int],
        on_done: Callable[[int, str, float], None] = lambda _n, _mode, _seconds: None,
    ) -> BenchReport:
        """Measure at each length. `on_done` is told length, mode and seconds of each timed run.

        Raises:
            UsageError: a length or count is out of range.
        """
        longest = self.engine.model.n_ctx_train - self.query_tokens - self.check_steps
        for name, value, low, high in (
            ("a length", min(lengths, default=0), 1, longest),
            ("a length", max(lengths, default=0), 1, longest),
            ("repeats", self.repeats, 1, 1000),
            ("query tokens", self.query_tokens, 1, 4096),
        ):
            if not low <= value <= high:
                raise UsageError(f"{name} is out of range", expected=f"{low}..{high}", got=value)
        before = machine.describe()
        holder: AbstractContextManager[str] = (
            tempfile.TemporaryDirectory(prefix="taliesin-bench-")
            if self.folder is None
            else nullcontext(str(self.folder))
        )
        rows: list[BenchRow] = []
        with holder as folder, Library(Path(folder) / "library") as library:
            for n_tokens in sorted(set(lengths)):
                rows += self._length(library, n_tokens, on_done)
        with self.engine.new_context(self.engine.settings, 256) as context:
            recipe = self.engine.recipe(context)
        after = machine.load_average()
        facts = {
            **before,
            "load_average_after": after,
            "model": self.engine.model.path.name,
            "seed": self.seed,
        }
        return BenchReport(rows, self.query_tokens, self.check_steps, facts, recipe)

    def _ids(self, n: int, stream: int) -> npt.NDArray[np.int32]:
        """Seeded ids spread over the vocabulary, control tokens left out; shape (n,) int32."""
        rng = np.random.default_rng([self.seed, n, stream])
        ids = rng.integers(0, self.engine.model.n_vocab, 2 * n + 64)
        ends = np.array(sorted(self.engine.model.end_of_generation))
        return ids[~np.isin(ids, ends)][:n].astype(np.int32)

    def _length(
        self, library: Library, n_tokens: int, on_done: Callable[[int, str, float], None]
    ) -> list[BenchRow]:
        engine = self.engine
        tokens, query = self._ids(n_tokens, 0), self._ids(self.query_tokens, 1).tolist()
        saved = save_tokens(
            engine,
            library,
            tokens.tolist(),
            f"bench-{n_tokens}",
            align="whole",
            replace_existing=True,
        )
        rows = {mode: BenchRow(n_tokens, mode) for mode in ("fresh", *self.modes)}
        room = self.query_tokens + self.check_steps + 1
        path = library.block_path(saved.info.id)
        near = {
            "memory": Tiers(engine, library, memory_bytes=_ENOUGH, n_extra=room),
            "resident": Tiers(engine, library, resident_bytes=_ENOUGH, n_extra=room),
        }
        try:
            with engine.new_context(engine.settings, n_tokens + room) as fresh_context:
                for repeat in range(-self.warm_up, self.repeats):
                    started = time.perf_counter()
                    fresh_context.clear()
                    fresh_context.decode(tokens, 0, logits=False)
                    logits = fresh_context.decode(query, n_tokens)
                    seconds = time.perf_counter() - started
                    assert logits is not None
                    reference = self._follow(fresh_context, logits, n_tokens)
                    if repeat >= 0:
                        vectors = len(reference)
                        rows["fresh"].samples.append(
                            Sample(seconds, 0.0, 0.0, vectors, vectors, None)
                        )
                        on_done(n_tokens, "fresh", seconds)
                    for mode in self.modes:
                        sample, grafted = self._graft(
                            library,
                            saved.info.id,
                            path,
                            mode,
                            near=near,
                            query=query,
                            reference=reference,
                        )
                        if repeat < 0:
                            continue
                        row = rows[mode]
                        row.samples.append(sample)
                        row.stored_bytes = grafted.restored.read_bytes
                        row.written_bytes = grafted.restored.written_bytes
                        on_done(n_tokens, mode, sample.seconds)
                    if repeat >= 0:
                        self._measure_copies([rows[mode] for mode in self.modes])
        finally:
            for tiers in near.values():
                tiers.close()
        return list(rows.values())

    def _graft(
        self,
        library: Library,
        block_id: str,
        path: Path,
        mode: Mode,
        *,
        near: dict[str, Tiers],
        query: list[int],
        reference: list[str],
    ) -> tuple[Sample, Grafted[InContext]]:
        if "cold" in mode:
            pagecache.drop(path)
        elif "warm" in mode:
            pagecache.warm(path)
        cached = pagecache.cached_fraction(path) if mode.startswith("disk") else None
        tiers = near.get(mode)
        if tiers is not None and tiers.near(block_id) != mode:
            tiers.graft(block_id)  # the first time brings it there
        started = time.perf_counter()
        if tiers is not None:
            grafted = tiers.graft(block_id).grafted
        else:
            policy: Policy = "always" if "hashed" in mode else "never"
            room = self.query_tokens + self.check_steps + 1
            with library.open(block_id) as block:
                grafted = self.engine.graft(block, library=library, policy=policy, n_extra=room)
        logits = grafted.prefill(query)
        seconds = time.perf_counter() - started
        digests = self._follow(grafted.place.context, logits, len(grafted.header.tokens))
        equal = sum(a == b for a, b in zip(digests, reference, strict=True))
        placed = 0.0 if mode == "resident" else grafted.restored.place_seconds
        return Sample(
            seconds, grafted.restored.read_seconds, placed, len(digests), equal, cached
        ), grafted

    def _measure_copies(self, rows: Sequence[BenchRow]) -> None:
        """What plain copies of a graft's bytes take, beside each repeat and once for all its
        modes.
        """
        for n_bytes in sorted({row.written_bytes for row in rows}):
            plain = _copy_seconds(n_bytes)
            limit = _limit_seconds(n_bytes) if self.engine.gpu_layers else None
            for row in rows:
                if row.written_bytes == n_bytes:
                    row.copy_seconds.append(plain)
                    if limit is not None:
                        row.limit_seconds.append(limit)

    def _follow(
        self, context: llama.Context, logits: npt.NDArray[np.float32], n_tokens: int
    ) -> list[str]:
        """Digests of `logits`, which follow the query, and of `check_steps` greedy steps after
        it.
        """
        digests, position = [certificate.digest(logits)], n_tokens + self.query_tokens
        for step in range(self.check_steps):
            following = context.decode([int(logits.argmax())], position + step)
            assert following is not None
            logits = following
            digests.append(certificate.digest(logits))
        return digests


def _copy_seconds(n_bytes: int) -> float:
    """One plain copy in memory, both sides touched before."""
    source = np.ones(n_bytes, np.uint8)
    target = np.zeros(n_bytes, np.uint8)
    started = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - started


def _limit_seconds(n_bytes: int) -> float | None:
    """The same from page-locked memory to the GPU; None where memory cannot be locked."""
    memory = staging.fresh(n_bytes, ())
    if not pagelock.lock(memory):
        return None
    try:
        return pagelock.copy_seconds(memory)
    finally:
        pagelock.unlock(memory)


# -- advice ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Advice:
    """Whether a text of `n_tokens` is worth a block on this machine.

    Seconds are estimates for that length: measured at `measured_tokens`, and beyond in proportion
    (prefill grows faster than that, so the true gain is larger). `uses` is after how many grafts
    the extra time of saving is won back; None: never.
    """

    n_tokens: int
    measured_tokens: int
    fresh_seconds: float
    graft_seconds: float
    save_seconds: float
    block_bytes: int
    break_even_tokens: float | None
    uses: int | None
    exact: bool

    @property
    def pays(self) -> bool:
        return self.uses is not None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "pays": self.pays}


def advise(engine: Engine, n_tokens: int, *, most_tokens: int = 1024, repeats: int = 3) -> Advice:
    """Measure this machine with short blocks and say what a text of `n_tokens` would gain from
    disk, files in the page cache.

    most_tokens: no longer block is measured.
    """
    measured = min(n_tokens, most_tokens)
    small = [n for n in SMALL_LENGTHS if n < measured]
    bench = Bench(engine, repeats=repeats, modes=("disk, warm",))
    report = bench.run([*small, measured])
    fresh, row = report.row(measured, "fresh").median, report.row(measured, "disk, warm")
    scale = n_tokens / measured
    # The part of a graft that grows with the block is what it costs beyond the shortest one.
    floor = min(report.row(n, "disk, warm").median for n in report.lengths)
    graft_seconds = floor + (row.median - floor) * scale
    fresh_seconds = fresh * scale
    with (
        tempfile.TemporaryDirectory(prefix="taliesin-advise-") as folder,
        Library(Path(folder) / "library") as library,
    ):
        started = time.perf_counter()
        saved = save_tokens(
            engine, library, bench._ids(measured, 0).tolist(), "advise", align="whole"
        )
        extra = (time.perf_counter() - started - saved.prefill_seconds) * scale
        block_bytes = int(saved.info.file_bytes * scale)
    gain = fresh_seconds - graft_seconds
    uses = max(1, -int(-extra // gain)) if gain > 0 and row.exact else None
    return Advice(
        n_tokens,
        measured,
        fresh_seconds,
        graft_seconds,
        extra,
        block_bytes,
        report.break_even("disk, warm"),
        uses,
        row.exact,
    )


# -- showing ---------------------------------------------------------------------------------------

HEADERS = (
    "tokens",
    "mode",
    "median ms",
    "spread ms",
    "times faster",
    "stored MB",
    "GB/s",
    "copy GB/s",
    "exact",
)


def table_rows(report: BenchReport) -> list[tuple[str, ...]]:
    """One row of text per length and mode, under `HEADERS`. GB/s is of handing the state to
    llama.cpp.
    """
    rows: list[tuple[str, ...]] = []
    for row, fields in zip(report.rows, report.as_dict()["rows"], strict=True):
        spread = row.spread
        speedup = fields["speedup"]
        rows.append(
            (
                str(row.n_tokens),
                row.mode,
                f"{row.median * 1e3:.2f}",
                f"{spread[0] * 1e3:.2f}-{spread[1] * 1e3:.2f}" if spread else "",
                f"{speedup:.1f}" if speedup is not None and row.mode != "fresh" else "",
                f"{row.stored_bytes / 1e6:.1f}" if row.stored_bytes else "",
                _rate(fields["place_gb_per_second"]),
                _rate(fields["copy_gb_per_second"]),
                f"{sum(s.n_equal for s in row.samples)}/{sum(s.n_vectors for s in row.samples)}"
                + ("" if row.exact else " NOT EXACT"),
            )
        )
    return rows


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def break_even_lines(report: BenchReport) -> list[str]:
    """One sentence per mode: from how many tokens on a graft is faster than a fresh prefill
    here.
    """
    lines = []
    shortest = report.lengths[0]
    for mode in report.modes:
        point = report.break_even(mode)
        if point is None:
            verdict = "at no length measured"
        elif point == 0:
            verdict = f"at every length measured, from {shortest} tokens on"
        else:
            verdict = f"from about {point:.0f} tokens on"
        lines.append(f"{mode}: a graft is faster {verdict}")
    return lines


def limit_lines(report: BenchReport) -> list[str]:
    """On a GPU, one sentence per length: the limit of copying, measured in this run, and the floor
    that follows from it.
    """
    lines = []
    for n in report.lengths:
        row = next((row for row in report.rows if row.n_tokens == n and row.limit_seconds), None)
        floor = report.floor(row) if row else None
        if row is None or floor is None:
            continue
        rate = row.written_bytes / statistics.median(row.limit_seconds) / 1e9
        lines.append(
            f"{n} tokens: page-locked memory to the GPU at {rate:.1f} GB/s; with the token as "
            "the resident tier decodes it, no graft "
            f"that copies is faster than {floor * 1e3:.1f} ms "
            f"({report.row(n, 'fresh').median / floor:.1f} times)"
        )
    return lines


def markdown(report: BenchReport) -> str:
    """The report as a Markdown page: what was measured where, the table, the break-even."""
    facts = report.machine
    load, after = facts["load_average"], facts["load_average_after"]
    lines = [
        f"# Fresh prefill and graft: {facts['model']}",
        "",
        f"{facts['time']}, {facts['cpu']}, {facts['cores']} cores, "
        f"{', '.join(report.recipe['devices'])}, "
        f"{report.recipe['n_threads']} threads, n_ubatch {report.recipe['n_ubatch']}, KV "
        f"{report.recipe['type_k']}/"
        f"{report.recipe['type_v']}, taliesin {facts['taliesin']}, llama-cpp-python "
        f"{facts['llama_cpp_python']}. "
        + (f"Load average {load[0]:.2f} before, {after[0]:.2f} after. " if load and after else "")
        + f"Each time ends with the logits after {report.query_tokens} more token(s); "
        f"{report.check_steps} greedy steps follow "
        "untimed and are hashed.",
        "",
        console.markdown_table(HEADERS, table_rows(report)),
        "",
        *(f"- {line}" for line in (*break_even_lines(report), *limit_lines(report))),
        "",
    ]
    return "\n".join(lines)


def plot(report: BenchReport, path: Path) -> None:
    """A PNG: seconds over tokens by mode, and how many times faster than fresh; both axes
    logarithmic.

    Raises:
        UsageError: matplotlib is not installed.
    """
    pyplot = plots.pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for number, mode in enumerate(("fresh", *report.modes)):
        rows = [report.row(n, mode) for n in report.lengths]
        rows = [row for row in rows if row.exact]
        tokens = [row.n_tokens for row in rows]
        left.plot(tokens, [row.median for row in rows], marker="o", label=mode, color=f"C{number}")
        if mode != "fresh":
            right.plot(
                tokens,
                [report.speedup(row) for row in rows],
                marker="o",
                label=mode,
                color=f"C{number}",
            )
    left.set_ylabel("seconds to the first logits (median)")
    right.set_ylabel("times faster than fresh (ratio of medians)")
    right.axhline(1, color="grey", linewidth=0.8)
    for axes in (left, right):
        axes.set_xlabel("tokens in the block")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(True, which="both", alpha=0.2)
        axes.legend(fontsize=8)
    figure.suptitle(
        f"{report.machine['model']}, {report.machine['cpu']}, "
        f"{', '.join(report.recipe['devices'])}",
        fontsize=9,
    )
    figure.savefig(path, dpi=130, metadata={"Software": None})
    pyplot.close(figure)
