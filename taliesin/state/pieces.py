"""Pieces: a state cut at multiples of `n_ubatch`, and states put together from such pieces.

A cold prefill computes `n_ubatch` tokens at a time from position 0. What it holds at a multiple of
`n_ubatch` is therefore the same whatever prompt goes on behind it (docs/exactness.md), so a state
that was taken in passing from one prompt serves every prompt that begins alike. Whole states of
every such length would hold the first tokens again and again; a piece holds only what its own
tokens added:

    ordinary layers    the K and V rows of its n_ubatch positions
    window layers      the rows of its last min(window, n_ubatch) positions: no later window reaches
                       further back into it
    what is left       the bytes of a recurrent memory at its end, if the model has one

Promises: `join` of pieces 0..k-1 is byte for byte the state that llama.cpp writes after a fresh
prefill of k * n_ubatch tokens, so `placement` and every proof of it apply unchanged.
Deliberately does not know: files, models, or what a piece is called.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from taliesin.errors import FormatError, UnsupportedModel
from taliesin.state.placement import ring_positions
from taliesin.state.seqstate import CELL, NO_CELLS, Part, Reader, Rows, SequenceState

Bytes = npt.NDArray[np.uint8]


class Array(NamedTuple):
    """One layer's K or V: its ggml type and the bytes of one position's row."""

    kind: int
    row_bytes: int


@dataclass(frozen=True)
class CacheLayout:
    """The arrays of one cache of a state, in the order in which the state has them."""

    keys: tuple[Array, ...]
    values: tuple[Array, ...]

    @property
    def arrays(self) -> tuple[Array, ...]:
        return (*self.keys, *self.values)

    @property
    def row_bytes(self) -> int:
        """Bytes that one position takes in all arrays."""
        return sum(array.row_bytes for array in self.arrays)


@dataclass(frozen=True)
class Layout:
    """What all pieces of one recipe have in common.

    window: tokens, 0 without window layers; ring: cells of the window cache (`placement`).
    """

    prefix: bytes
    ordinary: CacheLayout
    windowed: CacheLayout | None
    window: int
    ring: int
    n_ubatch: int

    @property
    def ordinary_bytes(self) -> int:
        """Bytes of a piece's ordinary rows."""
        return self.n_ubatch * self.ordinary.row_bytes

    @property
    def window_rows(self) -> int:
        """Positions whose window rows a piece holds: its last ones."""
        return min(self.window, self.n_ubatch)

    @property
    def window_bytes(self) -> int:
        """Bytes of a piece's window rows."""
        return self.window_rows * self.windowed.row_bytes if self.windowed else 0

    @property
    def additive_bytes(self) -> int:
        """Bytes of a piece without what is left of a recurrent memory."""
        return self.ordinary_bytes + self.window_bytes


def layout(state: SequenceState, window: int, ring: int, n_ubatch: int) -> Layout:
    """The layout of the pieces of a parsed state.

    Raises:
        UnsupportedModel: V is stored transposed (flash attention off), or the window cache has its
            full size: the rows of one position do not lie together, or not all of them are there.
        FormatError: the state holds no cells.
    """
    caches = [_cache_layout(part) for part in state.parts]
    if any(part.v_trans for part in state.parts):
        raise UnsupportedModel(
            "a prefix cache needs flash attention: without it V is stored transposed",
            hint="leave flash attention on",
        )
    if len(caches) > 1 and not ring:
        raise UnsupportedModel(
            "a prefix cache needs a window cache of its usual size",
            hint="swa_full=False, which is the default here",
        )
    return Layout(
        state.prefix,
        caches[0],
        caches[1] if len(caches) > 1 else None,
        window if ring else 0,
        ring,
        n_ubatch,
    )


def _cache_layout(part: Part) -> CacheLayout:
    if not part.n_cells:
        raise FormatError("a state without cells has no layout", where="a cache of the state")

    def arrays(rows: Sequence[Rows]) -> tuple[Array, ...]:
        return tuple(Array(row.kind, row.row_bytes) for row in rows)

    return CacheLayout(arrays(part.keys), arrays(part.values))


def cut(read: Reader, part: Part, first: int, end: int) -> bytes:
    """The rows of positions [`first`, `end`) of one cache of a state: array after array, each in
    the order of positions.

    Raises:
        FormatError: a position is not there.
    """
    wanted = np.arange(first, end, dtype=np.int32)
    order = np.argsort(part.positions)
    found = np.searchsorted(part.positions, wanted, sorter=order)
    cells = order[np.minimum(found, part.n_cells - 1)] if part.n_cells else np.empty(0, np.intp)
    if len(cells) != len(wanted) or not np.array_equal(part.positions[cells], wanted):
        raise FormatError(
            "the state does not hold every position of the piece",
            expected=f"positions {first}..{end - 1}",
            got=f"{part.n_cells} cells",
        )
    breaks = np.flatnonzero(np.diff(cells) != 1) + 1
    runs = [(int(run[0]), len(run)) for run in np.split(cells, breaks) if len(run)]
    return b"".join(
        read(rows.offset + cell * rows.row_bytes, count * rows.row_bytes)
        for rows in (*part.keys, *part.values)
        for cell, count in runs
    )


def split(form: Layout, read: Reader, state: SequenceState, n_tokens: int) -> Iterator[bytes]:
    """The pieces of a state of `n_tokens`, first to last. A state holds the window rows of its last
    pieces only: the earlier ones come without, and no boundary inside can be restored from them.
    """
    oldest = n_tokens - form.window
    for end in range(form.n_ubatch, n_tokens + 1, form.n_ubatch):
        rows = cut(read, state.parts[0], end - form.n_ubatch, end)
        if form.windowed and end - form.window_rows >= oldest:
            rows += cut(read, state.parts[1], end - form.window_rows, end)
        yield rows


def join(form: Layout, pieces: Sequence[bytes | memoryview], *, rest: bytes = b"") -> memoryview:
    """The state at the end of `pieces`, which are a prompt's first ones in order; `rest` is what
    follows the caches (a recurrent memory).

    Only the window rows of the last pieces are looked at: of the others, those bytes may be
    missing.

    Raises:
        FormatError: a piece is shorter than its layout says.
    """
    n_tokens = len(pieces) * form.n_ubatch
    views = [np.frombuffer(piece, np.uint8) for piece in pieces]
    _require_whole(form, views, n_tokens)
    everything = np.arange(n_tokens, dtype=np.int32)
    inside = _inside(form, n_tokens)
    size = len(form.prefix) + _cache_bytes(form.ordinary, n_tokens) + len(rest)
    if form.windowed:
        size += _cache_bytes(form.windowed, len(inside))
    buffer = np.empty(size, np.uint8)
    at = _put(buffer, 0, form.prefix)
    at = _put(buffer, at, _table(everything, form.ordinary))
    n_ubatch = form.n_ubatch
    source = 0
    for array in form.ordinary.arrays:
        at = _put(buffer, at, struct.pack("<iQ", *array))
        size = n_ubatch * array.row_bytes
        for view in views:
            buffer[at : at + size] = view[source : source + size]
            at += size
        source += size
    if form.windowed:
        at = _put(buffer, at, _table(inside, form.windowed))
        at = _put_window(form, form.windowed, views, inside, buffer, at)
    at = _put(buffer, at, rest)
    assert at == len(buffer)
    return buffer.data


def join_window(
    form: Layout, pieces: Sequence[bytes | memoryview], n_tokens: int, *, rest: bytes = b""
) -> memoryview:
    """The part of the state at `n_tokens` that does not grow with it: prefix, an ordinary cache
    without cells, the window rows, `rest`. `pieces` are the last ones before `n_tokens`, enough for
    the window.
    """
    views = [np.frombuffer(piece, np.uint8) for piece in pieces]
    _require_whole(form, views, n_tokens)
    head = form.prefix + NO_CELLS
    if not form.windowed:
        return np.frombuffer(head + rest, np.uint8).copy().data
    inside = _inside(form, n_tokens)
    first = n_tokens // form.n_ubatch - len(pieces)
    if len(inside) and int(inside.min()) < first * form.n_ubatch:
        raise FormatError(
            "too few pieces for the window",
            expected=f"from position {int(inside.min())} on",
            got=f"from position {first * form.n_ubatch} on",
        )
    buffer = np.empty(len(head) + _cache_bytes(form.windowed, len(inside)) + len(rest), np.uint8)
    at = _put(buffer, 0, head)
    at = _put(buffer, at, _table(inside, form.windowed))
    at = _put_window(form, form.windowed, views, inside, buffer, at, first)
    _put(buffer, at, rest)
    return buffer.data


def pieces_of_window(form: Layout) -> int:
    """How many of the last pieces the window at a boundary reaches into."""
    return -(-form.window // form.n_ubatch)


def _inside(form: Layout, n_tokens: int) -> npt.NDArray[np.int32]:
    """Positions that the window cache's state holds at `n_tokens`, in ring order."""
    if not form.windowed:
        return np.empty(0, np.int32)
    positions = ring_positions(n_tokens, form.ring)
    return positions[positions >= n_tokens - form.window]


def _require_whole(form: Layout, views: Sequence[Bytes], n_tokens: int) -> None:
    first_inside = max(n_tokens - form.window, 0) // form.n_ubatch
    first = n_tokens // form.n_ubatch - len(views)
    for index, view in enumerate(views):
        needed = form.additive_bytes if first + index >= first_inside else form.ordinary_bytes
        if len(view) < needed:
            raise FormatError(
                "a piece is too short",
                expected=f"at least {needed} bytes",
                got=len(view),
                where=f"piece {first + index}",
            )


def _cache_bytes(cache: CacheLayout, n_cells: int) -> int:
    """Bytes of one cache in a state with `n_cells` cells."""
    return 8 + n_cells * CELL.itemsize + 8 + len(cache.arrays) * 12 + n_cells * cache.row_bytes


def _table(positions: npt.NDArray[np.int32], cache: CacheLayout) -> bytes:
    cells = np.zeros(len(positions), CELL)
    cells["pos"], cells["n_seq_id"] = positions, 1
    return (
        struct.pack("<II", 1, len(positions))
        + cells.tobytes()
        + struct.pack("<II", 0, len(cache.keys))
    )


def _put(buffer: Bytes, at: int, data: bytes) -> int:
    buffer[at : at + len(data)] = np.frombuffer(data, np.uint8)
    return at + len(data)


def _put_window(
    form: Layout,
    cache: CacheLayout,
    views: Sequence[Bytes],
    inside: npt.NDArray[np.int32],
    buffer: Bytes,
    at: int,
    first_piece: int = 0,
) -> int:
    """The window arrays of the cells `inside`, from the pieces that hold them."""
    held = form.window_rows
    # Cells that follow each other in the ring, in one piece and by position, are one copy.
    keys = inside // form.n_ubatch
    breaks = np.flatnonzero((np.diff(inside) != 1) | (np.diff(keys) != 0)) + 1
    runs = [
        (int(run[0]) // form.n_ubatch - first_piece, int(run[0]) % form.n_ubatch, len(run))
        for run in np.split(inside, breaks)
        if len(run)
    ]
    source = form.ordinary_bytes
    for array in cache.arrays:
        at = _put(buffer, at, struct.pack("<iQ", *array))
        for piece, offset, count in runs:
            start = source + (offset - (form.n_ubatch - held)) * array.row_bytes
            size = count * array.row_bytes
            buffer[at : at + size] = views[piece][start : start + size]
            at += size
        source += held * array.row_bytes
    return at
