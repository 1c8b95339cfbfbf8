"""Slot files without a server: parsing, refusing, converting and laying out, on states made
here.
"""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from taliesin.errors import (
    FormatError,
    StoreFull,
    StoreMissing,
    UnsupportedModel,
    UnsupportedVersion,
)
from taliesin.state import placement, seqstate, slotfile

ROW = 4  # bytes of one cell's K or V in these states
HERE = Path("made-here.bin")


def row(position: int, layer: int, kind: int) -> bytes:
    return struct.pack("<HBB", position % 65536, layer, kind + 1)


def part(positions: list[int], layers: int, seq_id: int, n_stream: int, stream: int) -> bytes:
    """One cache part, its cells in stream `stream`."""
    cells = b"".join(struct.pack("<iIi", p, 1, seq_id) for p in positions)
    body = struct.pack("<I", len(positions)) + cells + struct.pack("<II", 0, layers)
    for kind in (0, 1):
        for layer in range(layers):
            body += struct.pack("<iQ", 1, ROW) + b"".join(row(p, layer, kind) for p in positions)
    return (
        struct.pack("<I", n_stream) + bytes(4 * stream) + body + bytes(4 * (n_stream - 1 - stream))
    )


def held(n: int, window: int, ring: int) -> list[int]:
    """Positions of the window part in cell order, as a save leaves it."""
    return [int(p) for p in placement.ring_positions(n, ring) if p >= n - window]


def slot_bytes(
    n: int, window: int = 0, ring: int = 0, slot: int = 0, n_stream: int = 1, packed: bool = True
) -> bytes:
    tokens = [(7 * i) % 1000 for i in range(n)]
    words = [-1, 1, n, *tokens, 0] if packed else tokens
    data = struct.pack("<III", slotfile.MAGIC, 3, len(words)) + struct.pack(
        f"<{len(words)}i", *words
    )
    stream = slot if n_stream > 1 else 0
    data += part(list(range(n)), 1, slot, n_stream, stream)
    if window:
        data += part(held(n, window, ring), 2, slot, n_stream, stream)
    return data


def parsed(data: bytes) -> slotfile.SlotFile:
    return slotfile.parse(memoryview(data), HERE)


shapes = st.tuples(
    st.integers(1, 90),  # tokens
    st.sampled_from([(0, 0), (8, 16), (8, 32), (16, 20)]),  # window and ring
    st.sampled_from([(1, 0), (4, 0), (4, 3)]),  # streams and slot
    st.booleans(),  # packed
)


@settings(deadline=None)
@given(shapes)
def test_a_slot_file_gives_a_payload_of_one_sequence(
    shape: tuple[int, tuple[int, int], tuple[int, int], bool],
) -> None:
    n, (window, ring), (n_stream, slot), packed = shape
    found = parsed(slot_bytes(n, window, ring, slot, n_stream, packed))
    assert (found.n_stream, found.seq_id, found.packed) == (n_stream, slot, packed)
    payload = b"".join(found.payload())
    alone = slot_bytes(n, window, ring)
    assert payload == slotfile.STATE_PREFIX + alone[12 + 4 * (n + 4) :]
    state = seqstate.parse(
        lambda at, size: payload[at : at + size], len(payload), 2 if window else 1
    )
    placement.check(state, n, window, ring)


@settings(deadline=None)
@given(shapes)
def test_a_laid_out_file_puts_every_cell_where_a_fresh_run_has_it(
    shape: tuple[int, tuple[int, int], tuple[int, int], bool],
) -> None:
    n, (window, ring), (n_stream, slot), packed = shape
    own = parsed(slot_bytes(n, window, ring, slot, n_stream, packed))
    image = slotfile.lay_out(
        memoryview(b"".join(own.payload())), own.tokens, window, ring, n_stream
    )
    again = slotfile.parse(image, HERE)
    assert again.tokens.tolist() == own.tokens.tolist()
    assert again.n_stream == n_stream
    assert again.parts[0].positions.tolist() == list(range(n))
    if not window:
        return
    expected = placement.ring_positions(n, ring)
    if n > ring and n % ring:
        expected[n % ring] = n  # says where the write head belongs; the server removes it
    windowed = again.parts[1]
    assert windowed.positions.tolist() == expected.tolist()
    for layer, rows in enumerate(windowed.keys):
        for index, position in enumerate(windowed.positions):
            stored = bytes(again.data[rows.offset + index * ROW : rows.offset + (index + 1) * ROW])
            assert stored == (
                row(int(position), layer, 0) if n - window <= position < n else bytes(ROW)
            )
    assert again.window == own.window == (window if n > window else 0)
    assert again.laid_out == (n > window)


def other_kinds(data: bytes) -> set[int]:
    """Lengths at which a cut file is a whole file of another kind of model: without window layers,
    or with K alone (MLA).

    The bytes cannot tell; the engine compares the parts with the model's before it uses them.
    """
    parts = parsed(data).parts
    after_keys = {p.keys[-1].offset + p.n_cells * p.keys[-1].row_bytes for p in parts}
    return after_keys | {p.end for p in parts[:-1]}


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damage_is_refused_or_changes_only_values(data: st.DataObject) -> None:
    """No flip, cut or extension reaches the caller as anything but our exceptions; what parses has
    a cell for each token.
    """
    good = slot_bytes(40, 8, 16)
    match data.draw(st.sampled_from(["flip", "cut", "extend"])):
        case "flip":
            at = data.draw(st.integers(0, len(good) - 1))
            bad = bytearray(good)
            bad[at] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            bad = bytearray(good[: data.draw(st.integers(12, len(good) - 1))])
        case _:
            bad = bytearray(good + data.draw(st.binary(min_size=1, max_size=40)))
    try:
        found = parsed(bytes(bad))
    except (FormatError, UnsupportedVersion, UnsupportedModel):
        return
    assert len(bad) == len(good) or len(bad) in other_kinds(good)
    assert found.parts[0].n_cells == len(found.tokens)


@settings(deadline=None)
@given(st.integers(12, len(slot_bytes(40, 8, 16)) - 1))
def test_every_truncation_is_refused(length: int) -> None:
    good = slot_bytes(40, 8, 16)
    assume(length not in other_kinds(good))
    with pytest.raises(FormatError):
        parsed(good[:length])


def test_another_version_is_named() -> None:
    data = bytearray(slot_bytes(5))
    data[4] = 4
    with pytest.raises(UnsupportedVersion, match="another llama") as caught:
        parsed(bytes(data))
    assert (caught.value.expected, caught.value.got) == ("version 3", 4)


def test_media_and_empty_slots_are_refused() -> None:
    words = [-1, 1, 1, 5, 1]
    data = (
        struct.pack("<III", slotfile.MAGIC, 3, len(words))
        + struct.pack("<5i", *words)
        + part([0], 1, 0, 1, 0)
    )
    with pytest.raises(UnsupportedModel, match="images or audio"):
        parsed(data)
    with pytest.raises(FormatError, match="empty"):
        parsed(struct.pack("<III", slotfile.MAGIC, 3, 0) + struct.pack("<II", 1, 0))


def test_a_state_that_is_not_of_a_fresh_run_is_not_laid_out() -> None:
    own = parsed(slot_bytes(40, 8, 16))
    with pytest.raises(FormatError, match="not where a fresh run puts them"):
        slotfile.lay_out(memoryview(b"".join(own.payload())), own.tokens, 8, 18)  # another ring


def test_a_laid_out_file_is_no_payload() -> None:
    own = parsed(slot_bytes(40, 8, 16))
    image = slotfile.lay_out(memoryview(b"".join(own.payload())), own.tokens, 8, 16)
    with pytest.raises(FormatError, match="laid out already"):
        slotfile.parse(image, HERE).payload()


def test_files_are_written_whole_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "slot.bin"
    data = slot_bytes(30, 8, 16)
    slotfile.write(path, memoryview(data))
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o077 == 0
    assert slotfile.read(path).tokens.tolist() == [(7 * i) % 1000 for i in range(30)]
    assert [p.name for p in tmp_path.iterdir()] == ["slot.bin"]


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="no such slot file"):
        slotfile.read(tmp_path / "missing")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    for path in (link, tmp_path):
        with pytest.raises(FormatError):
            slotfile.read(path)
    short = tmp_path / "short"
    short.write_bytes(b"abc")
    with pytest.raises(FormatError, match="too short"):
        slotfile.read(short)
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, 1 << 42)
    with pytest.raises(FormatError, match="not a slot file"):
        slotfile.read(huge)
    with pytest.raises(StoreFull, match="cannot be written"):
        slotfile.write(tmp_path / "absent" / "slot", memoryview(b"x"))


def test_the_golden_file_reads_as_it_did() -> None:
    """Written by llama-server of the pinned build from slot 1 of 2 (tests/golden/make_slot.py):
    window 32, ring 256.
    """
    found = slotfile.read(Path(__file__).parents[2] / "golden" / "slot_v3.bin")
    assert (len(found.tokens), found.n_stream, found.seq_id, found.window) == (300, 2, 1, 32)
    assert found.parts[0].positions.tolist() == list(range(300))
    assert found.parts[1].positions.tolist() == held(300, 32, 256)
    tokens = [1, *random.Random(3).choices(range(261, 355), k=299)]
    assert found.tokens.tolist() == tokens
    assert [len(p.keys) for p in found.parts] == [1, 5]
