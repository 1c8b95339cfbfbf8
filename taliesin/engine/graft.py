"""Putting a block back: from its file into an empty context, checked on the way.

Order matters and is fixed: parse the state's structure, plan, allocate, read and hash, compare, and
only then touch llama.cpp. A damaged byte is refused while the context is still empty, so nothing
has to be repaired afterwards.
"""

from __future__ import annotations

import bisect
import mmap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from taliesin.engine.staging import Range, Staging, fresh
from taliesin.errors import DecodeError, FormatError, StoreDamaged
from taliesin.state import placement, seqstate

if TYPE_CHECKING:
    from taliesin.engine.llama import Context
    from taliesin.store.blockfile import BlockFile

Piece = tuple[int, memoryview]


class Restored(NamedTuple):
    """What a restore did. Seconds are wall time; `written_bytes` counts the filler that
    `read_bytes` does not.
    """

    n_tokens: int
    read_bytes: int
    written_bytes: int
    read_seconds: float
    place_seconds: float


@dataclass
class Prepared:
    """A block's state laid out in memory, ready to be handed to llama.cpp any number of times.

    `memory` holds the `buffers`, which are one for each Restore among the steps, in order.
    """

    n_tokens: int
    steps: list[placement.Step]
    memory: memoryview
    buffers: list[memoryview]
    read_seconds: float

    @property
    def nbytes(self) -> int:
        """Bytes that are handed to llama.cpp."""
        return sum(b.nbytes for b in self.buffers)


def prepare(
    context: Context,
    block: BlockFile,
    *,
    verify: bool,
    threads: int = 2,
    staging: Staging | None = None,
) -> Prepared:
    """Read a block's state into the buffers that llama.cpp will be given; `verify` checks every
    chunk's SHA-256.

    The payload goes straight from the file to its place in the memory that `staging` lends and
    locks, without it in memory of its own.

    Raises:
        FormatError: the payload is not a state of the supported layout, or its cells are not those
        of a fresh run.
        StoreDamaged: a chunk's hash differs, or the file changed while it was read.
    """
    started = time.perf_counter()
    n_tokens = len(block.header.tokens)
    try:
        state = seqstate.parse(block.read_at, block.payload_bytes, context.n_parts)
        steps = placement.plan(state, n_tokens, context.model.window, context.ring)
    except FormatError as error:
        error.where = f"{block.path}, {error.where}"
        # A state that does not parse is often a damaged one: then say so, with the chunk.
        block.verify(threads)
        raise
    restores = [step for step in steps if isinstance(step, placement.Restore)]
    memory, buffers = _memory(restores, staging.take if staging else fresh)
    pieces = _pieces(restores, buffers, state.n_bytes)
    block.read_into(pieces, verify=verify, threads=threads)
    _require_same_structure(block, state, pieces)
    if staging:
        # now, not before: many threads have touched the pages, which locking would do with one
        staging.lock(memory)
    return Prepared(n_tokens, steps, memory, buffers, time.perf_counter() - started)


def prepare_state(
    context: Context,
    state: memoryview,
    n_tokens: int,
    *,
    window_only: bool = False,
    staging: Staging | None = None,
) -> Prepared:
    """As `prepare`, of a state in memory; nothing is hashed. `window_only`: `state` has no ordinary
    cells, and `apply_window` puts it back.

    Raises:
        FormatError: not a state of the supported layout, or not one of a fresh run.
    """
    started = time.perf_counter()
    parsed = seqstate.parse(
        lambda offset, size: bytes(state[offset : offset + size]), len(state), context.n_parts
    )
    plan = placement.plan_window if window_only else placement.plan
    steps = plan(parsed, n_tokens, context.model.window, context.ring)
    restores = [step for step in steps if isinstance(step, placement.Restore)]
    memory, buffers = _memory(restores, staging.take if staging else fresh)
    for step, buffer in zip(restores, buffers, strict=True):
        for target, data in step.literals:
            buffer[target : target + len(data)] = data
        for copy in step.copies:
            buffer[copy.target : copy.target + copy.size] = state[
                copy.source : copy.source + copy.size
            ]
    if staging:
        staging.lock(memory)
    return Prepared(n_tokens, steps, memory, buffers, time.perf_counter() - started)


def _memory(
    restores: list[placement.Restore], take: Callable[[int, Sequence[Range]], memoryview]
) -> tuple[memoryview, list[memoryview]]:
    """Memory for all the states, and the page-aligned part of it that is each one's; zero where no
    byte of the block goes.
    """
    starts, end = [], 0
    for step in restores:
        starts.append(end)
        end += -(-step.n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    filler = [
        (at + a, at + b)
        for at, step in zip(starts, restores, strict=True)
        for a, b in step.filler()
    ]
    memory = take(end, filler)
    return memory, [
        memory[at : at + step.n_bytes] for at, step in zip(starts, restores, strict=True)
    ]


def _pieces(
    restores: list[placement.Restore], buffers: list[memoryview], n_bytes: int
) -> list[Piece]:
    """Where each byte of the payload goes, in payload order; bytes that the plan makes itself go to
    scratch memory.
    """
    wanted: list[Piece] = []
    for step, buffer in zip(restores, buffers, strict=True):
        for target, data in step.literals:
            buffer[target : target + len(data)] = data
        wanted += [
            (copy.source, buffer[copy.target : copy.target + copy.size]) for copy in step.copies
        ]
    wanted.sort(key=lambda piece: piece[0])
    pieces: list[Piece] = []
    end = 0
    for source, view in [*wanted, (n_bytes, memoryview(b""))]:
        if source > end:
            pieces.append((end, memoryview(bytearray(source - end))))
        if len(view):
            pieces.append((source, view))
        end = source + len(view)
    return pieces


def _require_same_structure(
    block: BlockFile, state: seqstate.SequenceState, pieces: list[Piece]
) -> None:
    """What was hashed must be what was planned from: the structure was read once before."""
    starts = [start for start, _ in pieces]
    for offset, data in state.structure:
        start, view = pieces[bisect.bisect_right(starts, offset) - 1]
        if view[offset - start : offset - start + len(data)] != data:
            raise StoreDamaged(
                "the block changed while it was read", where=f"{block.path}, payload byte {offset}"
            )


def apply(context: Context, prepared: Prepared) -> float:
    """Hand a prepared state to an empty context; seconds taken. The context then is as a fresh
    prefill left it.

    Raises:
        DecodeError: llama.cpp refused a step, or does not hold afterwards what it should. The
        context is empty then.
    """
    context.clear()
    return _run(context, prepared)


def apply_window(context: Context, prepared: Prepared) -> float:
    """Take away everything after `prepared.n_tokens` and put the window cells of that length back
    (`prepare_state(..., window_only=True)`); the ordinary cells before it stay where they are.
    Seconds taken.

    Raises:
        DecodeError: as `apply`. The context is empty then.
    """
    context.remove(prepared.n_tokens, -1)
    return _run(context, prepared)


def _run(context: Context, prepared: Prepared) -> float:
    started = time.perf_counter()
    buffers = iter(prepared.buffers)
    try:
        for step in prepared.steps:
            if isinstance(step, placement.Restore):
                context.restore(next(buffers))
            else:
                context.remove(*step)
        seconds = time.perf_counter() - started
        _require_held(context, prepared)
    except DecodeError:
        context.clear()
        raise
    return seconds


def roll_back(context: Context, n_tokens: int) -> bool:
    """Take away, in place, what was decoded after a block; no cell is copied.

    False, and nothing is changed, where that would not leave the context as a fresh prefill left it
    (`placement.rolls_back`): then the block must be applied again.

    Raises:
        DecodeError: the context does not hold the block afterwards. It is empty then.
    """
    end = context.position_range()[1] + 1
    if end < n_tokens or not placement.rolls_back(
        n_tokens, end, context.model.window, context.ring
    ):
        return False
    context.remove(n_tokens, -1)
    # llama.cpp keeps a sequence's positions without gaps: the two ends say that the whole window is
    # still there.
    oldest, newest = context.position_range()
    needed = max(n_tokens - context.model.window, 0) if context.ring else 0
    if oldest > needed or newest != n_tokens - 1:
        context.clear()
        raise DecodeError(
            "the block is not what is left after its question was removed",
            expected=f"positions {needed}..{n_tokens - 1}",
            got=f"positions {oldest}..{newest}",
        )
    return True


def _require_held(context: Context, prepared: Prepared) -> None:
    n, ring = prepared.n_tokens, context.ring
    # A wrapped ring holds R positions, or R - 1 once the cell under the write head was freed.
    oldest = n - ring + (1 if n % ring else 0) if ring and n > ring else 0
    # Of the caches the one that holds less, in microseconds; that llama.cpp read each state to its
    # end is checked with the call.
    found = context.position_range()
    if found != (oldest, n - 1):
        raise DecodeError(
            "the restored cells are not those of the block",
            expected=f"positions {oldest}..{n - 1}",
            got=f"positions {found[0]}..{found[1]}",
            hint="taliesin check, then taliesin doctor",
        )


def require_cell_order(context: Context, n_tokens: int) -> None:
    """Read the state back and check that every cell lies where a fresh run puts it.

    Raises:
        FormatError: it does not.
    """
    data = context.state()
    state = seqstate.parse(
        lambda offset, size: bytes(data[offset : offset + size]), len(data), context.n_parts
    )
    placement.check(state, n_tokens, context.model.window, context.ring)


def restore(
    context: Context, block: BlockFile, *, verify: bool = True, threads: int = 2
) -> Restored:
    """`prepare` and `apply` in one go."""
    prepared = prepare(context, block, verify=verify, threads=threads)
    seconds = apply(context, prepared)
    return Restored(
        prepared.n_tokens, block.payload_bytes, prepared.nbytes, prepared.read_seconds, seconds
    )
