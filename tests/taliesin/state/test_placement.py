"""The plan that rebuilds a fresh run's cells: against a model of llama.cpp's ring, for any length,
window and ubatch.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taliesin.errors import FormatError, UnsupportedModel
from taliesin.state import placement, seqstate
from tests.taliesin.state.test_seqstate import PREFIX, parse, part


def fresh_ring(n_tokens: int, ring: int) -> tuple[dict[int, int], int]:
    """Cells of a ring after `n_tokens` one by one (cell -> position), and the write head: the rule
    itself, without formulas.
    """
    cells: dict[int, int] = {}
    head = 0
    for position in range(n_tokens):
        if head == ring:
            head = 0
        cells[head] = position
        head += 1
    return cells, head % ring


def apply(
    steps: list[placement.Step], blob: bytes, ring: int
) -> tuple[dict[int, bytes], dict[int, int], int, list[int]]:
    """What llama.cpp would hold after the steps: window rows and positions by cell, the head, and
    the ordinary positions.
    """
    rows: dict[int, bytes] = {}
    cells: dict[int, int] = {}
    head = 0
    ordinary: list[int] = []
    for step in steps:
        if isinstance(step, placement.Free):
            gone = [cell for cell, position in cells.items() if step.p0 <= position < step.p1]
            for cell in gone:
                del cells[cell]
            head = min([*gone, head])
            assert not ordinary, "the ordinary cache would lose this position"
            continue
        buffer = bytearray(step.n_bytes)
        for target, data in step.literals:
            buffer[target : target + len(data)] = data
        for copy in step.copies:
            buffer[copy.target : copy.target + copy.size] = blob[
                copy.source : copy.source + copy.size
            ]
        state = parse(bytes(buffer), 2)
        if state.parts[0].n_cells:
            ordinary = state.parts[0].positions.tolist()
        window = state.parts[1]
        if window.n_cells:
            assert not cells
            assert window.n_cells <= ring
            cells = dict(enumerate(window.positions.tolist()))
            head = window.n_cells
            first = window.keys[0]
            rows = {
                i: bytes(
                    buffer[
                        first.offset + i * first.row_bytes : first.offset
                        + (i + 1) * first.row_bytes
                    ]
                )
                for i in cells
            }
    return rows, cells, head % ring, ordinary


lengths = st.integers(1, 200)


@given(n=lengths, window=st.integers(1, 40), slack=st.integers(1, 40))
def test_the_ring_is_as_a_fresh_run_leaves_it(n: int, window: int, slack: int) -> None:
    ring = window + slack
    expected, head = fresh_ring(n, ring)
    visible = {
        cell: position for cell, position in sorted(expected.items()) if position >= n - window
    }
    blob = PREFIX + part(list(range(n))) + part(list(visible.values()))
    rows, cells, got_head, ordinary = apply(
        placement.plan(parse(blob, 2), n, window, ring), blob, ring
    )
    assert ordinary == list(range(n))
    assert got_head == head
    assert {c: p for c, p in cells.items() if p >= n - window} == visible
    # masked cells hold what the fresh run holds there, but for the one that was freed to move the
    # head
    assert set(expected.items()) - set(cells.items()) <= {(head, n - ring)}
    assert all(rows[cell] == bytes([position % 251]) * 8 for cell, position in visible.items())
    assert all(not any(row) for cell, row in rows.items() if cell not in visible)


@given(n=lengths, window=st.integers(1, 40), slack=st.integers(1, 40))
def test_copies_cover_every_stored_row_once(n: int, window: int, slack: int) -> None:
    positions = placement.ring_positions(n, window + slack)
    blob = PREFIX + part(list(range(n))) + part([int(p) for p in positions if p >= n - window])
    state = parse(blob, 2)
    steps = placement.plan(state, n, window, window + slack)
    copied = np.zeros(len(blob), int)
    for step in steps:
        if isinstance(step, placement.Restore):
            for copy in step.copies:
                copied[copy.source : copy.source + copy.size] += 1
    for stored in state.parts:
        for rows in (*stored.keys, *stored.values):
            assert (copied[rows.offset : rows.offset + stored.n_cells * rows.row_bytes] == 1).all()


def test_without_window_layers_the_state_is_handed_over_as_it_is() -> None:
    blob = PREFIX + part([0, 1, 2])
    steps = placement.plan(parse(blob), 3, 0, 0)
    assert steps == [placement.Restore(len(blob), [], [placement.Copy(0, 0, len(blob))])]


@pytest.mark.parametrize(
    "positions",
    [[0, 2, 1], [1, 2, 3], [0, 1], [0, 1, 2, 3]],
    ids=["order", "offset", "missing", "too many"],
)
def test_cells_that_a_fresh_run_would_not_have_are_refused(positions: list[int]) -> None:
    with pytest.raises(FormatError, match="not where a fresh run puts them"):
        placement.plan(parse(PREFIX + part(positions)), 3, 0, 0)


def test_a_packed_window_is_refused() -> None:
    """llama.cpp's own restore packs window cells from 0 on: saved again, that state must not pass
    for a fresh one.
    """
    blob = PREFIX + part(list(range(20))) + part([16, 17, 18, 19])
    with pytest.raises(FormatError, match="not where a fresh run puts them"):
        placement.plan(parse(blob, 2), 20, 4, 6)


def test_transposed_window_values_are_refused() -> None:
    blob = PREFIX + part([0, 1, 2], v_trans=1) + part([0, 1, 2], v_trans=1)
    with pytest.raises(UnsupportedModel, match="flash attention"):
        placement.plan(parse(blob, 2), 3, 8, 16)


@pytest.mark.parametrize(
    ("window", "n_ubatch", "n_seq_max", "n_ctx", "expected"),
    [
        (512, 512, 1, 4096, 1024),
        (1024, 512, 1, 16384, 1536),
        (512, 512, 2, 4096, 1536),
        (128, 500, 1, 4096, 768),
        (512, 512, 1, 512, 512),
        (0, 512, 1, 4096, 0),
    ],
)
def test_ring_sizes(window: int, n_ubatch: int, n_seq_max: int, n_ctx: int, expected: int) -> None:
    assert placement.ring_cells(window, n_ubatch, n_seq_max, n_ctx) == expected


def test_a_state_of_other_parts_is_refused() -> None:
    with pytest.raises(FormatError):
        seqstate.parse(lambda offset, size: (PREFIX + part([0]))[offset : offset + size], 40, 2)
