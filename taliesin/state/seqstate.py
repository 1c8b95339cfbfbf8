"""The bytes of a llama.cpp sequence state, read as structure: which cells it holds, and where their
rows lie.

Layout of llama-cpp-python 0.3.36 (`llama_context::state_seq_get_data`,
`llama_kv_cache::state_write` of the vendored llama.cpp), little-endian, written here from
measurement and refused when anything else comes:

    u32 magic, i32 seq_id per cache part (the ordinary cache first; then, on a model with
    sliding-window layers, the window cache):
        u32 n_stream (1), u32 n_cells
        if n_cells:
            n_cells x { i32 pos, u32 n_seq_id (1), i32 seq_id }
                in cell order, which is not position order in a ring
            u32 v_trans, u32 n_layer
            per layer:  i32 ggml type, u64 row bytes, n_cells rows of K
            per layer:  i32 ggml type, u64 row bytes, n_cells rows of V   (v_trans = 0)
                        i32 ggml type, u32 element bytes, u32 n_embd,
                        n_embd x n_cells values             (v_trans = 1)

Every count is checked against the bytes that are left before anything is allocated for it. This
module does not know models, files or where cells belong; that is `placement`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taliesin.errors import FormatError

Reader = Callable[[int, int], bytes]
"""`read(offset, size)` gives exactly `size` bytes of the state, which may still lie in a file."""

PREFIX_BYTES = 8  # magic, seq_id
PART_BYTES = 8  # n_stream, n_cells
NO_CELLS = struct.pack("<II", 1, 0)  # a part that restores nothing
CELL = np.dtype([("pos", "<i4"), ("n_seq_id", "<u4"), ("seq_id", "<i4")])

_MAX_LAYERS = 4096
_MAX_ROW_BYTES = 1 << 24
_MAX_POSITION = 1 << 30


@dataclass(frozen=True)
class Rows:
    """One layer's K or V in a state: `n_cells` rows of `row_bytes`, the first at byte `offset`."""

    kind: int
    row_bytes: int
    offset: int


@dataclass(frozen=True)
class Part:
    """One cache of a state: bytes [`offset`, `end`), `positions` of shape (n_cells,) int32 in cell
    order.
    """

    offset: int
    end: int
    positions: npt.NDArray[np.int32]
    v_trans: bool
    keys: tuple[Rows, ...]
    values: tuple[Rows, ...]

    @property
    def n_cells(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class SequenceState:
    """A parsed state. `structure` is every structural byte that the parse relied on, as (offset,
    bytes) in ascending order.
    """

    n_bytes: int
    prefix: bytes
    parts: tuple[Part, ...]
    structure: tuple[tuple[int, bytes], ...]


class Cursor:
    """Reads forward through a state, remembers the structural bytes it saw, and never past the
    end.
    """

    def __init__(self, read: Reader, n_bytes: int) -> None:
        self.read, self.n_bytes, self.offset = read, n_bytes, 0
        self.seen: list[tuple[int, bytes]] = []

    def take(self, size: int, what: str) -> bytes:
        self.require(size, what)
        data = self.read(self.offset, size)
        self.seen.append((self.offset, data))
        self.offset += size
        return data

    def skip(self, size: int, what: str) -> int:
        """Step over `size` bytes of tensor data; gives the offset where they begin."""
        self.require(size, what)
        start = self.offset
        self.offset += size
        return start

    def require(self, size: int, what: str) -> None:
        if size > self.n_bytes - self.offset:
            raise _bad(
                f"{what} runs past the end",
                f"{size} bytes",
                f"{self.n_bytes - self.offset} left",
                self.offset,
            )


def _bad(what: str, expected: object, got: object, offset: int) -> FormatError:
    return FormatError(
        f"not a llama.cpp sequence state of the supported layout: {what}",
        expected=expected,
        got=got,
        where=f"state byte {offset}",
        hint="save the block again with this build; the layout belongs to one llama.cpp version",
    )


def _bounded(value: int, low: int, high: int, what: str, offset: int) -> int:
    if not low <= value <= high:
        raise _bad(f"{what} is out of range", f"{low}..{high}", value, offset)
    return value


def parse(read: Reader, n_bytes: int, n_parts: int) -> SequenceState:
    """The structure of a state of `n_bytes` with `n_parts` cache parts (1, or 2 on a model with
    window layers).

    Raises:
        FormatError: a count is impossible, a part is short, or bytes are left over.
    """
    cursor = Cursor(read, n_bytes)
    prefix = cursor.take(PREFIX_BYTES, "magic and sequence id")
    parts = tuple(_part(cursor, last=i == n_parts - 1) for i in range(n_parts))
    if cursor.offset != n_bytes:
        raise _bad("bytes are left over after the last part", n_bytes, cursor.offset, cursor.offset)
    return SequenceState(n_bytes, prefix, parts, tuple(cursor.seen))


def _part(cursor: Cursor, last: bool) -> Part:
    offset = cursor.offset
    n_stream, n_cells = struct.unpack("<II", cursor.take(PART_BYTES, "a part's counts"))
    _bounded(n_stream, 1, 1, "n_stream", offset)
    return cells(cursor, offset, n_cells, 0, last)


def cells(cursor: Cursor, offset: int, n_cells: int, seq_id: int, last: bool) -> Part:
    """One stream's cells, read at the cursor, as the part that begins at `offset`; `last`: no cell
    data follows it.

    Raises:
        FormatError: as `parse`.
    """
    if n_cells == 0:
        return Part(offset, cursor.offset, np.empty(0, np.int32), False, (), ())
    table = np.frombuffer(cursor.take(n_cells * CELL.itemsize, "cell positions"), CELL)
    if not (table["n_seq_id"] == 1).all() or not (table["seq_id"] == seq_id).all():
        raise _bad(
            f"a cell does not belong to sequence {seq_id} alone",
            f"n_seq_id 1, seq_id {seq_id}",
            "other values",
            offset,
        )
    positions = table["pos"].astype(np.int32)
    _bounded(int(positions.min()), 0, _MAX_POSITION, "a position", offset)
    _bounded(int(positions.max()), 0, _MAX_POSITION, "a position", offset)
    if len(np.unique(positions)) != n_cells:
        raise _bad(
            "two cells hold one position",
            f"{n_cells} positions",
            f"{len(np.unique(positions))} different",
            offset,
        )
    v_trans, n_layer = struct.unpack("<II", cursor.take(8, "layer count"))
    _bounded(v_trans, 0, 1, "v_trans", cursor.offset - 8)
    _bounded(n_layer, 1, _MAX_LAYERS, "n_layer", cursor.offset - 4)
    keys = tuple(_rows(cursor, n_cells, "K") for _ in range(n_layer))
    if last and cursor.offset == cursor.n_bytes:  # caches that hold K only (MLA) write no V at all
        values: tuple[Rows, ...] = ()
    elif v_trans:
        values = tuple(_transposed(cursor, n_cells) for _ in range(n_layer))
    else:
        values = tuple(_rows(cursor, n_cells, "V") for _ in range(n_layer))
    return Part(offset, cursor.offset, positions, bool(v_trans), keys, values)


def _rows(cursor: Cursor, n_cells: int, name: str) -> Rows:
    kind, row_bytes = struct.unpack("<iQ", cursor.take(12, f"a {name} header"))
    _bounded(kind, 0, 255, f"the ggml type of {name}", cursor.offset - 12)
    _bounded(row_bytes, 1, _MAX_ROW_BYTES, f"the row size of {name}", cursor.offset - 8)
    return Rows(kind, row_bytes, cursor.skip(n_cells * row_bytes, f"{name} rows"))


def _transposed(cursor: Cursor, n_cells: int) -> Rows:
    kind, element_bytes, n_embd = struct.unpack("<iII", cursor.take(12, "a V header"))
    _bounded(kind, 0, 255, "the ggml type of V", cursor.offset - 12)
    row_bytes = _bounded(
        element_bytes * n_embd, 1, _MAX_ROW_BYTES, "the row size of V", cursor.offset - 8
    )
    return Rows(kind, row_bytes, cursor.skip(n_cells * row_bytes, "V values"))
