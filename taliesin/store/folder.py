"""The folder of a library: what lies where in it, how it is made and recognised
(docs/format.md, "Library").

Promises: a folder with other things in it is never taken over; symbolic links are not followed.
Deliberately does not know: what is in the files of blocks and names, and who may write when.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from taliesin.errors import (
    FormatError,
    StoreDamaged,
    StoreFull,
    StoreMissing,
    UnsupportedVersion,
    UsageError,
)
from taliesin.host import durable, records
from taliesin.host.canonical import canonical_json, is_digest, parse_canonical_json
from taliesin.host.records import Record
from taliesin.store.blockfile import SUFFIX, open_regular

VERSION = 1
LOCK = "lock"
REBUILD_LOCK = "rebuild.lock"
INDEX = "index.sqlite3"
_MARKER = "library.json"
_FORMAT = "taliesin-library"
_FOLDERS = ("blocks", "refs", "quarantine", "tmp")
OWN_NAMES = frozenset(
    (
        _MARKER,
        LOCK,
        REBUILD_LOCK,
        INDEX,
        f"{INDEX}-wal",
        f"{INDEX}-shm",
        f"{INDEX}-journal",
        *_FOLDERS,
    )
)
_MAX_MARKER_BYTES = 4096
_ID_PREFIX = re.compile(r"[0-9a-f]{8,64}")


class Marker(Record):
    """What `library.json` says."""

    SCHEMA = "taliesin.library/1"

    format: Literal["taliesin-library"]
    version: Literal[1]


def default_path() -> Path:
    """Where a user's library is unless told otherwise."""
    from platformdirs import user_data_path

    return user_data_path("taliesin") / "library"


class Folder:
    """The parts of one library's folder, by what they are for."""

    def __init__(self, path: Path, *, create: bool) -> None:
        """The library at `path`, with `create` made if it is not there. Raises as `Library`."""
        self.path = path
        with storage_errors(path):
            if not self._has_marker():
                if not create:
                    raise StoreMissing(
                        "no library there", where=path, hint="taliesin save makes one"
                    )
                self._create()
            self._check_version()
            for name in (*_FOLDERS, LOCK, REBUILD_LOCK, INDEX):
                refuse_link(path / name)

    @property
    def blocks(self) -> Path:
        return self.path / "blocks"

    @property
    def refs(self) -> Path:
        return self.path / "refs"

    @property
    def drafts(self) -> Path:
        return self.path / "tmp"

    @property
    def quarantine(self) -> Path:
        return self.path / "quarantine"

    @property
    def index(self) -> Path:
        return self.path / INDEX

    @property
    def lock(self) -> Path:
        return self.path / LOCK

    def block(self, block_id: str) -> Path:
        """Where the block of this id is, if it is. Raises StoreDamaged if its folder is a symbolic
        link.
        """
        folder = self.blocks / block_id[:2]
        refuse_link(folder)
        return folder / (block_id + SUFFIX)

    def find_id(self, prefix: str) -> str:
        """The id of the only block that begins with `prefix` (8 digits or more).

        Raises:
            UsageError: several do. StoreMissing: none does.
        """
        found: list[str] = []
        if _ID_PREFIX.fullmatch(prefix):
            folder = self.blocks / prefix[:2]
            refuse_link(folder)
            files = os.listdir(folder) if folder.is_dir() else []
            ids = (id_of_block_file(file, prefix[:2]) for file in files)
            found = [block_id for block_id in ids if block_id and block_id.startswith(prefix)]
        if len(found) > 1:
            raise UsageError(
                f"{len(found)} blocks have an id that begins so",
                got=prefix,
                hint="give more digits",
            )
        if not found:
            raise StoreMissing(
                "no block of that name or id",
                got=repr(prefix),
                where=self.path,
                hint="taliesin list shows what there is",
            )
        return found[0]

    def _has_marker(self) -> bool:
        if not self.path.exists():
            return False
        if not self.path.is_dir():
            raise StoreMissing("a library is a folder", got="a file", where=self.path)
        return os.path.lexists(self.path / _MARKER)

    def _create(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        foreign = sorted(set(os.listdir(self.path)) - OWN_NAMES)
        if foreign:
            raise FormatError(
                "the folder is not a library and holds other things",
                got=", ".join(foreign[:3]),
                where=self.path,
                hint="choose a new or an empty folder",
            )
        self.path.chmod(0o700)
        for name in _FOLDERS:
            refuse_link(self.path / name)
            (self.path / name).mkdir(mode=0o700, exist_ok=True)
        marker = canonical_json({"format": _FORMAT, "version": VERSION})
        # The draft in `tmp/`, where `leftovers` finds what a killed writer left.
        durable.write(
            self.path / _MARKER, marker, draft=self.drafts / f"marker-{os.urandom(8).hex()}"
        )

    def _check_version(self) -> None:
        path = self.path / _MARKER
        with os.fdopen(open_regular(path), "rb") as file:
            marker = parse_canonical_json(
                file.read(_MAX_MARKER_BYTES), "the library's marker", path
            )
        version = marker.get("version")
        if isinstance(version, int) and version > VERSION:
            raise UnsupportedVersion(
                f"library of version {version}; this program reads version {VERSION}", where=path
            )
        records.convert(marker, Marker, what="the library's marker", where=path)


def id_of_block_file(file: str, folder: str) -> str | None:
    """The id that names the block file; None for another file."""
    block_id = file.removesuffix(SUFFIX)
    return (
        block_id
        if file.endswith(SUFFIX) and is_digest(block_id) and block_id.startswith(folder)
        else None
    )


def refuse_link(path: Path) -> None:
    """Raise StoreDamaged for a symbolic link in place of a part of the library."""
    if path.is_symlink():
        raise StoreDamaged(
            "a symbolic link in the library is not followed",
            where=path,
            hint="put the real thing in its place",
        )


_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_NOT_PERMITTED = frozenset((errno.EROFS, errno.EACCES, errno.EPERM))


@contextmanager
def storage_errors(where: Path) -> Iterator[None]:
    """Errors of the file system, as errors of the tree."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        place = error.filename or where
        if error.errno in _FULL:
            raise StoreFull(
                "no space left; nothing was stored",
                got=reason,
                where=place,
                hint="taliesin gc --budget 10GB",
            ) from error
        if error.errno in _NOT_PERMITTED:
            raise StoreFull(
                "not permitted", got=reason, where=place, hint="choose another --library"
            ) from error
        raise StoreDamaged("the file system reported an error", got=reason, where=place) from error
