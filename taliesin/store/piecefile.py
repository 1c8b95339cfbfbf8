"""The bytes of a piece file (docs/format.md, "Piece file"): a piece of a prompt's state under a
name that says everything it depends on.

Promises: a file that is read is whole, unchanged and the piece of its name, or it is refused; every
count is checked before memory is allocated for it.
Deliberately does not know: folders, and what the payload holds (`state.pieces`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from taliesin.errors import FormatError, StoreDamaged, UnsupportedVersion
from taliesin.host.canonical import canonical_json, is_digest, parse_canonical_json
from taliesin.host.records import Record, convert, plain
from taliesin.store.blockfile import open_regular

MAGIC = b"TALPIECE"
VERSION = 1
_PREAMBLE = struct.Struct("<8sHHIQ32s")  # magic, version, minor, header, payload, header's SHA-256
_MAX_HEADER_BYTES = 1 << 20
_MAX_PAYLOAD_BYTES = 1 << 36

TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]


class PieceHeader(Record, frozen=True, kw_only=True):
    """What a piece file says besides its payload.

    recipe: SHA-256 of the canonical recipe; parent: name of the piece before, empty for the first;
    ids: its own tokens; payload_sha256: of the payload.
    """

    SCHEMA = "taliesin.piece/1"

    recipe: str
    parent: str
    ids: Annotated[list[TokenId], Meta(min_length=1, max_length=1 << 16)]
    payload_sha256: str

    def __post_init__(self) -> None:
        for name in (self.recipe, self.payload_sha256, self.parent or self.recipe):
            if not is_digest(name):
                raise ValueError("SHA-256 in lower-case hexadecimal")

    @property
    def name(self) -> str:
        """The piece's name: SHA-256 over the name before and its ids."""
        return following(self.parent or self.recipe, np.asarray(self.ids, np.int32))


class Piece(NamedTuple):
    """A piece that was read."""

    header: PieceHeader
    payload: bytes


def following(before: str, ids: npt.NDArray[np.int32]) -> str:
    """The name of the piece with `ids` after the piece `before`, or after nothing: then `before` is
    the SHA-256 of the recipe.
    """
    own = np.ascontiguousarray(ids, "<i4").tobytes()
    return hashlib.sha256(bytes.fromhex(before) + own).hexdigest()


def encode(recipe: str, parent: str, ids: Sequence[int], payload: bytes) -> tuple[str, bytes]:
    """Name and bytes of a piece file, payload not included."""
    header = convert(
        {
            "recipe": recipe,
            "parent": parent,
            "ids": list(ids),
            "payload_sha256": hashlib.sha256(payload).hexdigest(),
        },
        PieceHeader,
        what="the piece",
    )
    raw = canonical_json(plain(header))
    digest = hashlib.sha256(raw).digest()
    return header.name, _PREAMBLE.pack(MAGIC, VERSION, 0, len(raw), len(payload), digest) + raw


def read(path: Path, name: str) -> Piece:
    """The piece `name` in the file at `path`.

    Raises:
        StoreMissing: no such file. FormatError: not a piece file, or of another name.
        UnsupportedVersion: of a later version. StoreDamaged: a byte is not what was written.
    """
    with _header(path, name) as (fd, header, at, n_payload):
        payload = _exactly(fd, n_payload, at, path)
        if hashlib.sha256(payload).hexdigest() != header.payload_sha256:
            raise StoreDamaged("the payload of the piece file is damaged", where=path)
        return Piece(header, payload)


def read_header(path: Path, name: str) -> PieceHeader:
    """What the piece `name` in the file at `path` says of itself; its payload is not read.

    Raises: as `read`, as far as the header tells.
    """
    with _header(path, name) as (_, header, _at, _size):
        return header


@contextlib.contextmanager
def _header(path: Path, name: str) -> Iterator[tuple[int, PieceHeader, int, int]]:
    """An open piece file: descriptor, header, where the payload begins, its bytes."""
    fd = open_regular(path)
    try:
        size = os.fstat(fd).st_size
        start = os.pread(fd, _PREAMBLE.size, 0)
        if len(start) != _PREAMBLE.size or start[: len(MAGIC)] != MAGIC:
            raise FormatError("not a piece file", expected=MAGIC.decode(), where=path)
        _, version, _minor, n_header, n_payload, digest = _PREAMBLE.unpack(start)
        if version != VERSION:
            raise UnsupportedVersion(
                "a piece file of another version", expected=VERSION, got=version, where=path
            )
        if (
            not 0 < n_header <= _MAX_HEADER_BYTES
            or not 0 < n_payload <= _MAX_PAYLOAD_BYTES
            or size != _PREAMBLE.size + n_header + n_payload
        ):
            raise StoreDamaged(
                "the piece file has another length than it says",
                expected=_PREAMBLE.size + n_header + n_payload,
                got=size,
                where=path,
            )
        raw = _exactly(fd, n_header, _PREAMBLE.size, path)
        if hashlib.sha256(raw).digest() != digest:
            raise StoreDamaged("the header of the piece file is damaged", where=path)
        header = convert(
            parse_canonical_json(raw, "the piece's header", path),
            PieceHeader,
            what="the piece's header",
            where=path,
        )
        if header.name != name:
            raise FormatError(
                "the piece is another one", expected=name, got=header.name, where=path
            )
        yield fd, header, _PREAMBLE.size + n_header, n_payload
    finally:
        os.close(fd)


def _exactly(fd: int, size: int, offset: int, where: Path) -> bytes:
    """`size` bytes from `offset`; the file was that long a moment ago."""
    found = []
    while size:
        part = os.pread(fd, min(size, 1 << 30), offset)
        if not part:
            raise StoreDamaged("the piece file was cut while it was read", where=where)
        found.append(part)
        size -= len(part)
        offset += len(part)
    return b"".join(found)
