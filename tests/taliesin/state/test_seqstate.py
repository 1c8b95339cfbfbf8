"""The parser of sequence states: what it takes, and that no byte string makes it do anything but
refuse.
"""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taliesin.errors import FormatError
from taliesin.state import seqstate

PREFIX = struct.pack("<Ii", 0xAF143CB8, 0)


def part(
    positions: list[int],
    *,
    layers: int = 2,
    row_bytes: int = 8,
    v_trans: int = 0,
    values: bool = True,
) -> bytes:
    """The bytes of one cache part, its rows filled with the row's number."""
    if not positions:
        return struct.pack("<II", 1, 0)
    out = [struct.pack("<II", 1, len(positions))]
    out += [struct.pack("<iIi", p, 1, 0) for p in positions]
    out.append(struct.pack("<II", v_trans, layers))
    rows = b"".join(bytes([p % 251]) * row_bytes for p in positions)
    out += [struct.pack("<iQ", 1, row_bytes) + rows for _ in range(layers)]
    if values and v_trans:
        out += [struct.pack("<iII", 1, 2, row_bytes // 2) + rows for _ in range(layers)]
    elif values:
        out += [struct.pack("<iQ", 1, row_bytes) + rows for _ in range(layers)]
    return b"".join(out)


def parse(data: bytes, n_parts: int = 1) -> seqstate.SequenceState:
    return seqstate.parse(lambda offset, size: data[offset : offset + size], len(data), n_parts)


def test_positions_rows_and_ends_are_found() -> None:
    data = PREFIX + part([0, 1, 2])
    state = parse(data)
    only = state.parts[0]
    assert only.positions.tolist() == [0, 1, 2]
    assert [rows.row_bytes for rows in (*only.keys, *only.values)] == [8] * 4
    assert only.end == len(data)
    assert data[only.keys[1].offset : only.keys[1].offset + 8] == b"\0" * 8


def test_two_parts_are_told_apart() -> None:
    state = parse(PREFIX + part([0, 1, 2, 3]) + part([2, 3], layers=5, row_bytes=16), n_parts=2)
    assert [p.n_cells for p in state.parts] == [4, 2]
    assert len(state.parts[1].keys) == 5


def test_transposed_values_and_absent_values_are_read() -> None:
    assert parse(PREFIX + part([0, 1], v_trans=1)).parts[0].v_trans
    assert parse(PREFIX + part([0, 1], values=False)).parts[0].values == ()


def test_structure_holds_every_byte_outside_the_rows() -> None:
    data = PREFIX + part([0, 1, 2])
    state = parse(data)
    rows = sum(3 * r.row_bytes for r in (*state.parts[0].keys, *state.parts[0].values))
    assert sum(len(piece) for _, piece in state.structure) == len(data) - rows
    assert all(data[offset : offset + len(piece)] == piece for offset, piece in state.structure)


BROKEN = {
    "n_stream": PREFIX + struct.pack("<II", 2, 1),
    "more cells than bytes": PREFIX + struct.pack("<II", 1, 0xFFFFFFFF),
    "a cell of two sequences": PREFIX
    + part([0, 1])[:12]
    + struct.pack("<I", 2)
    + part([0, 1])[16:],
    "a negative position": PREFIX + part([-1, 0]),
    "two cells at one position": PREFIX + part([1, 1]),
    "no layers": PREFIX + part([0], layers=0),
    "a row of no bytes": PREFIX + part([0], row_bytes=0),
    "bytes left over": PREFIX + part([0]) + b"\0",
    "cut short": (PREFIX + part([0]))[:-1],
    "empty": b"",
}


@pytest.mark.parametrize("damage", BROKEN)
def test_damage_is_refused(damage: str) -> None:
    with pytest.raises(FormatError, match="not a llama"):
        parse(BROKEN[damage])


@given(st.binary(max_size=400), st.integers(1, 2))
def test_no_bytes_do_anything_but_parse_or_refuse(data: bytes, n_parts: int) -> None:
    try:
        state = parse(PREFIX + data, n_parts)
    except FormatError:
        return
    assert state.parts[-1].end == len(PREFIX) + len(data)


@given(st.data())
def test_one_changed_structural_byte_never_parses_to_the_same_cells(data: st.DataObject) -> None:
    good = bytearray(PREFIX + part([0, 1, 2], layers=1, row_bytes=2))
    at = data.draw(
        st.sampled_from(
            [o + i for o, piece in parse(bytes(good)).structure[1:] for i in range(len(piece))]
        )
    )
    good[at] ^= data.draw(st.integers(1, 255))
    try:
        state = parse(bytes(good))
    except FormatError:
        return
    before = parse(PREFIX + part([0, 1, 2], layers=1, row_bytes=2))
    assert not np.array_equal(state.parts[0].positions, before.parts[0].positions) or (
        state.structure != before.structure
    )
