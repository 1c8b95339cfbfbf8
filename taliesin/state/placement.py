"""Where the cells of a saved state belong: the steps that leave a context exactly as a fresh
prefill left it.

Why this is needed at all (measured, docs/exactness.md). Attention sums over cells in *cell order*,
and floating-point sums depend on order. So a graft is bit-exact only if every visible value sits in
the same cell as after a fresh run, and if the next token is written to the same cell as well.

Without window layers a fresh run puts position p in cell p, the saved state lists cells in that
order, and llama.cpp's own restore
puts them back so: one step.

With window layers (width W) llama.cpp keeps them in a *ring* of R = pad256(W + n_ubatch) cells:
position p lives in cell p mod R and the write *head* is n mod R. A saved state holds only the
positions that are still inside the window, and the ordinary restore
packs them from cell 0 on. The values are right and the order is wrong: the first logits may even be
equal, and the text diverges some tokens later. The ring is rebuilt in three steps instead:

1. *Window cells.* Restore a state whose ordinary part is empty and whose window part names
   **every** ring cell in index order, with the position that a fresh run has there. Cells outside
   the window are masked, so their values cannot reach a result; zeros do (they must be finite). A
   restore into an empty cache goes to cells 0, 1, 2, ...: each position lands in its ring cell.
2. *Head.* After step 1 the head is at the end of the ring. If the ring has wrapped (n > R, h = n
   mod R > 0), free the one cell h: it holds position n - R, the oldest and masked. Freeing a cell
   below the head moves the head there, and the next token is written to cell h, as in a fresh run.
   The ordinary cache is still empty and loses nothing.
3. *Ordinary cells.* Restore the ordinary part with an empty window part.

Pure: this module plans copies between byte ranges and touches neither files nor llama.cpp.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from taliesin.errors import FormatError, UnsupportedModel
from taliesin.state.seqstate import CELL, NO_CELLS, Part, SequenceState


class Copy(NamedTuple):
    """`size` bytes of the saved state, from byte `source`, to byte `target` of the state that is
    handed to llama.cpp.
    """

    source: int
    target: int
    size: int


@dataclass
class Restore:
    """One state to hand to `llama_state_seq_set_data`: zeros, but for `literals` (target, bytes)
    and `copies`.
    """

    n_bytes: int = 0
    literals: list[tuple[int, bytes]] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)

    def literal(self, data: bytes) -> None:
        self.literals.append((self.n_bytes, data))
        self.n_bytes += len(data)

    def copy(self, source: int, size: int) -> None:
        self.copies.append(Copy(source, self.n_bytes, size))
        self.n_bytes += size

    def filler(self) -> list[tuple[int, int]]:
        """[start, end) of the bytes that stay zero, ascending."""
        given = sorted(
            [(target, len(data)) for target, data in self.literals]
            + [(copy.target, copy.size) for copy in self.copies]
        )
        gaps, end = [], 0
        for target, size in [*given, (self.n_bytes, 0)]:
            if target > end:
                gaps.append((end, target))
            end = target + size
        return gaps


class Free(NamedTuple):
    """Remove positions [`p0`, `p1`) with `llama_memory_seq_rm`."""

    p0: int
    p1: int


Step = Restore | Free


def ring_cells(window: int, n_ubatch: int, n_seq_max: int, n_ctx: int) -> int:
    """Cells of llama.cpp's window cache with `swa_full=False`; 0 without window layers.

    Source: `llama_kv_cache_iswa` of the pinned llama.cpp: GGML_PAD(min(n_ctx, n_swa * n_seq_max +
    n_ubatch), 256).
    """
    return -(-min(n_ctx, window * n_seq_max + n_ubatch) // 256) * 256 if window else 0


def ring_positions(n_tokens: int, ring: int) -> npt.NDArray[np.int32]:
    """Position held by each ring cell after a fresh run of `n_tokens`, by cell index; shape
    (min(n_tokens, ring),) int32.
    """
    if n_tokens <= ring:
        return np.arange(n_tokens, dtype=np.int32)
    head = n_tokens % ring
    cells = np.arange(ring, dtype=np.int32)
    return np.where(cells < head, n_tokens - head + cells, n_tokens - head - ring + cells).astype(
        np.int32
    )


def check(state: SequenceState, n_tokens: int, window: int, ring: int) -> None:
    """Refuse a state that is not what a fresh run of `n_tokens` in one sequence leaves.

    Raises:
        FormatError: cells are missing, out of order, or at other positions.
        UnsupportedModel: window layers with transposed V (flash attention off) or with a full-size
        cache (`swa_full`).
    """
    if len(state.parts) > 1 and not ring:
        raise UnsupportedModel(
            "a full-size window cache (swa_full) is not put back exactly: its saved state is "
            "pruned and packed",
            hint="swa_full=False, which is the default here",
        )
    everything = np.arange(n_tokens, dtype=np.int32)
    if not np.array_equal(state.parts[0].positions, everything):
        raise _misplaced(
            "the ordinary cache", f"positions 0..{n_tokens - 1} in order", state.parts[0]
        )
    if ring:
        positions = ring_positions(n_tokens, ring)
        inside = positions[positions >= n_tokens - window]
        if not np.array_equal(state.parts[1].positions, inside):
            raise _misplaced(
                "the window cache",
                f"the last {len(inside)} positions in ring order",
                state.parts[1],
            )
        if state.parts[1].v_trans:
            raise UnsupportedModel(
                "window layers without flash attention are not supported: V is stored "
                "transposed, and that is not verified",
                hint="leave flash attention on",
            )


def _misplaced(where: str, expected: str, part: Part) -> FormatError:
    found = part.positions
    got = f"{len(found)} cells, positions {found[0]}..{found[-1]}" if len(found) else "no cells"
    return FormatError(
        "the state's cells are not where a fresh run puts them",
        expected=expected,
        got=got,
        where=where,
    )


def plan(state: SequenceState, n_tokens: int, window: int, ring: int) -> list[Step]:
    """The steps that put a checked state back into an *empty* context with one sequence (the module
    docstring says why).

    Args:
        ring: cells of the window cache (`ring_cells`), 0 for a model without window layers.

    Raises:
        FormatError, UnsupportedModel: as `check`.
    """
    check(state, n_tokens, window, ring)
    if not ring:
        verbatim = Restore()
        verbatim.copy(0, state.n_bytes)
        return [verbatim]
    ordinary, windowed = state.parts
    steps: list[Step] = [_lay_out(state.prefix, windowed, ring_positions(n_tokens, ring))]
    if n_tokens > ring and n_tokens % ring:
        steps.append(Free(n_tokens - ring, n_tokens - ring + 1))
    back = Restore()
    back.copy(0, ordinary.end)
    back.literal(NO_CELLS)
    steps.append(back)
    return steps


def plan_window(state: SequenceState, n_tokens: int, window: int, ring: int) -> list[Step]:
    """The steps that put only the window cells back into a context whose ordinary cells [0,
    `n_tokens`) are still there and whose later ones were removed: a `state` as `pieces.join_window`
    makes it.

    The ordinary rows, which are most of a state, are not touched. So the write head cannot be moved
    by freeing the oldest position as in `plan`: that would take it away from the ordinary cache
    too. The cell under the head is given position `n_tokens`, which only the window cache then
    holds, and that is freed.

    Raises:
        FormatError, UnsupportedModel: as `check`.
    """
    if not ring:
        return []
    windowed = state.parts[1]
    positions = ring_positions(n_tokens, ring)
    inside = positions[positions >= n_tokens - window]
    if not np.array_equal(windowed.positions, inside):
        raise _misplaced(
            "the window cache", f"the last {len(inside)} positions in ring order", windowed
        )
    wrapped = n_tokens > ring and n_tokens % ring
    if wrapped:
        positions = positions.copy()
        positions[n_tokens % ring] = n_tokens
    steps: list[Step] = [_lay_out(state.prefix, windowed, positions)]
    if wrapped:
        steps.append(Free(n_tokens, n_tokens + 1))
    return steps


def _lay_out(prefix: bytes, part: Part, positions: npt.NDArray[np.int32]) -> Restore:
    """A state with an empty ordinary part and one window cell per entry of `positions`, in that
    order.
    """
    cells = np.zeros(len(positions), CELL)
    cells["pos"], cells["n_seq_id"] = positions, 1
    out = Restore()
    out.literal(prefix + NO_CELLS + struct.pack("<II", 1, len(positions)) + cells.tobytes())
    out.literal(struct.pack("<II", 0, len(part.keys)))
    runs = _runs(part.positions, positions)
    for rows in (*part.keys, *part.values):
        out.literal(struct.pack("<iQ", rows.kind, rows.row_bytes))
        base = out.n_bytes
        for source, target, length in runs:
            out.copies.append(
                Copy(
                    rows.offset + source * rows.row_bytes,
                    base + target * rows.row_bytes,
                    length * rows.row_bytes,
                )
            )
        out.n_bytes += len(positions) * rows.row_bytes
    return out


def _runs(held: npt.NDArray[np.int32], wanted: npt.NDArray[np.int32]) -> list[tuple[int, int, int]]:
    """(index in held, index in wanted, length) of the stretches of `held` that stand together in
    `wanted`: at most two in a ring.
    """
    index_of = {int(p): i for i, p in enumerate(wanted)}
    targets = np.array([index_of[int(p)] for p in held])
    breaks = np.flatnonzero(np.diff(targets) != 1) + 1
    return [
        (int(run[0]), int(targets[run[0]]), len(run))
        for run in np.split(np.arange(len(held)), breaks)
    ]


def rolls_back(n_tokens: int, end: int, window: int, ring: int) -> bool:
    """Whether removing positions [`n_tokens`, `end`) leaves a context as a fresh prefill of
    `n_tokens` left it.

    Always without a ring: the freed cells are the last ones. In a ring the added tokens went over
    older cells, so three things must hold (each was measured to break bits without it): what they
    went over was outside the window already; they did not run round the end of the ring, or
    llama.cpp would put the head to cell 0; and the ring's last cell is still taken, or attention
    would be computed over fewer cells.
    """
    if not ring or end <= ring:
        return True
    return (
        n_tokens >= ring
        and end - n_tokens <= ring - window
        and n_tokens % ring + end - n_tokens < ring
    )
