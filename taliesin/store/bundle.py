"""Several blocks in one tar file, to carry to another machine (docs/format.md, "Bundle").

Promises that a reader hands out a member only after its place, kind, name and size were checked
against the manifest, and the manifest against its own hash (one of minor 0 has none).
Deliberately does not know: the library that the blocks come from or go to, which checks their
content.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, Literal

from taliesin.errors import FormatError, StoreDamaged, UnsupportedVersion, UsageError
from taliesin.host import durable, records
from taliesin.host.canonical import canonical_json, parse_canonical_json
from taliesin.host.kinds import Digest, PositiveCount
from taliesin.host.records import Record
from taliesin.store.blockfile import SUFFIX, BlockFile, open_regular

VERSION: Final = 1
MINOR: Final = 1
_FORMAT: Final = "taliesin-bundle"
_MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 1 << 24


class Entry(Record):
    """One line of the manifest: a name and the block it is for. Several names may share a block."""

    name: str
    id: Digest
    bytes: PositiveCount
    root: Digest


class Manifest(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The first member of a bundle: what follows, and under which names. Of minor 0 where `minor`
    and `sha256` are absent: then nothing says whether a name is the one that was written.
    """

    SCHEMA = "taliesin.bundle/1"

    format: Literal["taliesin-bundle"]
    version: Literal[1]
    minor: Literal[0, 1] = 0
    blocks: tuple[Entry, ...]
    sha256: Digest | None = None

    @property
    def hashed(self) -> bool:
        return self.sha256 is not None

    def digest(self) -> str:
        """SHA-256 of the canonical JSON of every other field."""
        fields = records.plain(self)
        fields.pop("sha256", None)
        return hashlib.sha256(canonical_json(fields)).hexdigest()


def _member_name(block_id: str) -> str:
    return f"blocks/{block_id}{SUFFIX}"


def _member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o400
    return info


class _HashingReader(io.RawIOBase):
    """A block file from its start, hashed as it is read."""

    def __init__(self, block: BlockFile) -> None:
        self.sha256 = hashlib.sha256()
        self._pieces = block.file_bytes()
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        data, self._rest = self._rest[:size], self._rest[size:]
        self.sha256.update(data)
        return data


def write(path: Path, blocks: Mapping[str, BlockFile]) -> int:
    """Write the named blocks to the new file `path`, and give back its size in bytes. Every block
    is hashed on the way.

    Raises:
        UsageError: `path` exists.
        StoreDamaged: a block is not what its id says; then no file is left.
        OSError: from the file system.
    """
    if path.exists() or path.is_symlink():
        raise UsageError(
            "the bundle exists already", where=path, hint="remove it, or choose another name"
        )
    entries = [
        Entry(
            name=name,
            id=block.block_id or block.file_digest(),
            bytes=block.identity.size,
            root=block.root,
        )
        for name, block in blocks.items()
    ]
    bare = Manifest(format=_FORMAT, version=VERSION, minor=MINOR, blocks=tuple(entries))
    manifest = canonical_json(records.plain(bare) | {"sha256": bare.digest()})
    with (
        durable.replacing(path) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        tar.addfile(_member(_MANIFEST, len(manifest)), io.BytesIO(manifest))
        done = set()
        for entry, block in zip(entries, blocks.values(), strict=True):
            if entry.id in done:
                continue
            done.add(entry.id)
            content = _HashingReader(block)
            tar.addfile(_member(_member_name(entry.id), entry.bytes), content)
            if content.sha256.hexdigest() != entry.id:
                raise StoreDamaged(
                    f"block {block.name} is damaged",
                    where=block.path,
                    hint="taliesin check names the damage",
                )
    return path.stat().st_size


@contextmanager
def reading(path: Path) -> Iterator[tuple[Manifest, Iterator[tuple[str, int, IO[bytes]]]]]:
    """The manifest of the bundle at `path`, and its blocks as (id, size, stream), each stream to be
    read in turn.

    The content is not hashed here: the caller compares it with the id.

    Raises:
        StoreMissing: no such file. UnsupportedVersion: a newer bundle. StoreDamaged: the manifest
        is not what its hash says. FormatError: whatever else is not as it must be.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                manifest = _read_manifest(tar, path)
                yield manifest, _members(tar, manifest.blocks, path)
        except (tarfile.TarError, EOFError) as error:
            raise FormatError(
                "not a bundle, or one that was cut short", got=str(error), where=path
            ) from error


def _read_manifest(tar: tarfile.TarFile, where: Path) -> Manifest:
    info = tar.next()
    if info is None or info.name != _MANIFEST or not _is_plain(info):
        raise FormatError(
            "not a bundle",
            expected=f"{_MANIFEST} first",
            got=info.name if info else "an empty tar",
            where=where,
        )
    if info.size > _MAX_MANIFEST_BYTES:
        raise FormatError(
            "the bundle's manifest is too long",
            expected=_MAX_MANIFEST_BYTES,
            got=info.size,
            where=where,
        )
    what = "the bundle's manifest"
    fields = parse_canonical_json(_content(tar, info, where).read(), what, where)
    if fields.get("format") != _FORMAT:
        raise FormatError("not a bundle", expected=_FORMAT, got=fields.get("format"), where=where)
    version, minor = fields.get("version"), fields.get("minor", 0)
    if isinstance(version, int) and isinstance(minor, int) and (version, minor) > (VERSION, MINOR):
        raise UnsupportedVersion(
            f"bundle of version {version}.{minor}; this program reads up to {VERSION}.{MINOR}",
            where=where,
        )
    manifest = records.convert(fields, Manifest, what=what, where=where)
    if (manifest.minor > 0) != manifest.hashed:
        raise FormatError(
            "the bundle's manifest is of another minor version than it says",
            expected="minor 1 with a sha256, or neither",
            got=f"minor {manifest.minor} {'with' if manifest.hashed else 'without'} a sha256",
            where=where,
        )
    if manifest.hashed and manifest.digest() != manifest.sha256:
        raise StoreDamaged(
            "the bundle's manifest is damaged",
            expected=manifest.sha256,
            got=manifest.digest(),
            where=where,
            hint="copy the bundle again",
        )
    entries = manifest.blocks
    if len({entry.name for entry in entries}) != len(entries):
        raise FormatError("the bundle's manifest gives a name twice", where=where)
    if len({(entry.id, entry.bytes, entry.root) for entry in entries}) != len(
        {entry.id for entry in entries}
    ):
        raise FormatError("the bundle's manifest describes a block in two ways", where=where)
    return manifest


def _members(
    tar: tarfile.TarFile, entries: tuple[Entry, ...], where: Path
) -> Iterator[tuple[str, int, IO[bytes]]]:
    for entry in {entry.id: entry for entry in entries}.values():
        info = tar.next()
        if info is None:
            raise FormatError(
                "the bundle ends before its last block", expected=entry.id, where=where
            )
        if info.name != _member_name(entry.id) or not _is_plain(info):
            raise FormatError(
                "the bundle holds something its manifest does not list here",
                expected=_member_name(entry.id),
                got=repr(info.name),
                where=where,
            )
        if info.size != entry.bytes:
            raise FormatError(
                f"block {entry.id[:12]} of the bundle has another size",
                expected=entry.bytes,
                got=info.size,
                where=where,
            )
        yield entry.id, entry.bytes, _content(tar, info, where)
    extra = tar.next()
    if extra is not None:
        raise FormatError(
            "the bundle goes on after its last block", got=repr(extra.name), where=where
        )


def _is_plain(info: tarfile.TarInfo) -> bool:
    """An ordinary file without extensions: no link, device or sparse file, no pax header that
    changes name or size.
    """
    return (
        info.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
        and not info.issparse()
        and not info.pax_headers
    )


def _content(tar: tarfile.TarFile, info: tarfile.TarInfo, where: Path) -> IO[bytes]:
    stream = tar.extractfile(info)
    if stream is None:
        raise FormatError("a member of the bundle has no content", got=repr(info.name), where=where)
    return stream
