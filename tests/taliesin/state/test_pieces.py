"""States cut into pieces and put together again: byte for byte what a state of that length is."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taliesin.errors import FormatError, UnsupportedModel
from taliesin.state import pieces, placement, seqstate
from taliesin.state.seqstate import CELL
from tests.taliesin.state.test_seqstate import PREFIX, parse


def rows_of(position: int, layer: int, row_bytes: int) -> bytes:
    """A row that no other position and layer has."""
    return bytes((position * 7 + layer * 31 + i) % 251 for i in range(row_bytes))


def cache(positions: list[int], row_bytes: list[int], first_layer: int) -> bytes:
    """One cache of a state: as many K and V arrays as `row_bytes` says."""
    cells = np.zeros(len(positions), CELL)
    cells["pos"], cells["n_seq_id"] = positions, 1
    out = [struct.pack("<II", 1, len(positions)), cells.tobytes()]
    out.append(struct.pack("<II", 0, len(row_bytes)))
    for kind in (0, 100):
        for layer, size in enumerate(row_bytes):
            out.append(struct.pack("<iQ", 1, size))
            out += [rows_of(p, first_layer + kind + layer, size) for p in positions]
    return b"".join(out)


def window_positions(n_tokens: int, window: int, ring: int) -> list[int]:
    positions = placement.ring_positions(n_tokens, ring)
    return positions[positions >= n_tokens - window].tolist()


def whole(
    n_tokens: int, window: int, ring: int, sizes: list[int], window_sizes: list[int]
) -> bytes:
    """The state that a fresh run of `n_tokens` leaves, written out from the rule itself."""
    state = PREFIX + cache(list(range(n_tokens)), sizes, 0)
    if window:
        state += cache(window_positions(n_tokens, window, ring), window_sizes, 50)
    return state


sizes = st.lists(st.integers(1, 12), min_size=1, max_size=3)


@given(
    n_ubatch=st.integers(1, 40),
    window=st.integers(0, 60),
    count=st.integers(1, 8),
    ordinary=sizes,
    windowed=sizes,
    rest=st.binary(max_size=20),
)
def test_joined_pieces_are_the_state_byte_for_byte(
    n_ubatch: int,
    window: int,
    count: int,
    ordinary: list[int],
    windowed: list[int],
    rest: bytes,
) -> None:
    ring = window + n_ubatch + 3 if window else 0
    n_parts = 2 if window else 1
    payloads, form = [], None
    for index in range(count):
        end = (index + 1) * n_ubatch
        data = whole(end, window, ring, ordinary, windowed)
        state = parse(data, n_parts)
        form = form or pieces.layout(state, window, ring, n_ubatch)

        def read(offset: int, size: int, data: bytes = data) -> bytes:
            return data[offset : offset + size]

        payload = pieces.cut(read, state.parts[0], end - n_ubatch, end)
        if window:
            payload += pieces.cut(read, state.parts[1], end - form.window_rows, end)
        assert len(payload) == form.additive_bytes
        payloads.append(payload)
    assert form is not None
    n_tokens = count * n_ubatch
    expected = whole(n_tokens, window, ring, ordinary, windowed) + rest
    assert bytes(pieces.join(form, payloads, rest=rest)) == expected
    # The early pieces' window rows are never looked at.
    needed = pieces.pieces_of_window(form)
    short = [p[: form.ordinary_bytes] for p in payloads[: max(count - needed, 0)]]
    assert bytes(pieces.join(form, [*short, *payloads[len(short) :]], rest=rest)) == expected
    # And the window alone is the same window.
    last = payloads[max(count - needed, 0) :]
    alone = pieces.join_window(form, last, n_tokens, rest=rest)
    small = parse(expected[: len(expected) - len(rest)], n_parts)
    start = small.parts[0].end
    assert bytes(alone) == PREFIX + seqstate.NO_CELLS + expected[start:]


def form_of(window: int = 4, n_ubatch: int = 4) -> pieces.Layout:
    ring = window + n_ubatch if window else 0
    data = whole(n_ubatch, window, ring, [3], [5])
    return pieces.layout(parse(data, 2 if window else 1), window, ring, n_ubatch)


def test_a_short_piece_is_refused_with_its_number() -> None:
    form = form_of()
    good = bytes(form.additive_bytes)
    with pytest.raises(FormatError, match="too short") as caught:
        pieces.join(form, [good, good[:-1]])
    assert caught.value.where == "piece 1"


def test_too_few_pieces_for_the_window_are_refused() -> None:
    form = form_of(window=6)
    with pytest.raises(FormatError, match="too few pieces"):
        pieces.join_window(form, [bytes(form.additive_bytes)], 12)


def test_a_position_that_is_not_there_is_refused() -> None:
    data = whole(8, 0, 0, [3], [])
    state = parse(data)
    with pytest.raises(FormatError, match="every position"):
        pieces.cut(lambda o, n: data[o : o + n], state.parts[0], 6, 10)


def test_transposed_values_and_full_size_windows_are_refused() -> None:
    from tests.taliesin.state.test_seqstate import part

    with pytest.raises(UnsupportedModel, match="flash attention"):
        pieces.layout(parse(PREFIX + part([0, 1], v_trans=1)), 0, 0, 2)
    with pytest.raises(UnsupportedModel, match="usual size"):
        pieces.layout(parse(PREFIX + part([0, 1]) + part([0, 1]), 2), 4, 0, 2)
