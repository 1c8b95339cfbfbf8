"""The names of a library's blocks: what a name may be, the file of `refs/` that keeps it, and what
that file says.

Promises: a name never becomes a path and has one file name in every locale; a ref that is read says
what a ref must say; one that is written is there whole or not at all (docs/format.md, "Library").
Deliberately does not know: which blocks there are, and who may write when (the lock is the
library's).
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from taliesin.errors import FormatError, StoreDamaged, StoreMissing, UsageError
from taliesin.host import durable, records
from taliesin.host.canonical import canonical_json, parse_canonical_json
from taliesin.host.kinds import Digest
from taliesin.host.records import Record
from taliesin.store.blockfile import identity_of, open_regular

_SUFFIX = b".json"
_MAX_NAME_CHARS = 200
_MAX_NAME_BYTES = 240
_MAX_REF_BYTES = 4096


class RefFile(Record):
    """What the file of a name says: the block that the name leads to, and that block's root."""

    SCHEMA = "taliesin.ref/1"

    block: Digest
    root: Digest
    pinned: bool
    created: str


class Ref(NamedTuple):
    """One ref file: its file name and stamp, and what it says; `block_id` is empty for a damaged
    one.
    """

    file: bytes
    stamp: str
    name: str
    block_id: str
    root: str
    pinned: bool
    created: str


def checked_name(name: str) -> str:
    """`name` in NFC.

    Raises:
        UsageError: empty, too long, with a control character, or with a space at an end.
    """
    name = unicodedata.normalize("NFC", name)
    if not name or len(name) > _MAX_NAME_CHARS:
        raise UsageError(
            "a block's name has a wrong length",
            expected=f"1 to {_MAX_NAME_CHARS} characters",
            got=len(name),
        )
    for char in name:
        # Joiners are part of the spelling in several scripts; other format characters can only
        # mislead.
        if (
            unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
            and char not in "\u200c\u200d"
        ):
            raise UsageError("a block's name holds a control character", got=repr(name))
    if name != name.strip():
        raise UsageError("a block's name begins or ends with a space", got=repr(name))
    if len(file_of(name)) > _MAX_NAME_BYTES:
        raise UsageError(
            "a block's name is too long for a file name",
            expected=f"{_MAX_NAME_BYTES} bytes",
            got=len(file_of(name)),
        )
    return name


def file_of(name: str) -> bytes:
    """The file name of a ref, as bytes, so that it does not depend on the locale."""
    raw = re.sub(rb"[/\\%]|^\.", lambda match: b"%%%02X" % ord(match[0]), name.encode())
    return raw + _SUFFIX


def name_of(file: bytes) -> str | None:
    """The name that `file` stands for; None if no name has that file name."""
    try:
        name = unquote_to_bytes(file.removesuffix(_SUFFIX)).decode()
        return name if checked_name(name) == name and file_of(name) == file else None
    except (UnicodeDecodeError, UsageError):
        return None


class Refs:
    """The refs of one library, in `folder`; drafts of refs lie in `drafts` until they are whole."""

    def __init__(self, folder: Path, drafts: Path) -> None:
        self.folder = folder
        self._drafts = drafts

    def path(self, name: str) -> Path:
        return self.folder / os.fsdecode(file_of(name))

    def read(self, file: bytes) -> Ref:
        """The ref in that file.

        Raises:
            StoreMissing: no such file. StoreDamaged: it does not say what a ref says, or is not a
            regular file.
        """
        path = self.folder / os.fsdecode(file)
        name = name_of(file)
        try:
            fd = open_regular(path)
            try:
                stamp = identity_of(os.fstat(fd)).stamp
                raw = os.read(fd, _MAX_REF_BYTES + 1)
            finally:
                os.close(fd)
            fields = parse_canonical_json(raw, "ref", path)
            says = records.convert(fields, RefFile, what="the name's file", where=path)
        except FormatError as error:
            raise StoreDamaged(
                f"the name {name!r} is damaged: {error.message}",
                expected=error.expected,
                got=error.got,
                where=path,
                hint="taliesin check --repair removes it",
            ) from error
        if name is None:
            raise StoreDamaged(
                "the file's name stands for no name of a block",
                got=repr(file),
                where=path,
                hint="taliesin check --repair removes it",
            )
        return Ref(file, stamp, name, says.block, says.root, says.pinned, says.created)

    def find(self, name: str) -> Ref | None:
        """The ref of that name. Raises StoreDamaged as `read`."""
        try:
            return self.read(file_of(name))
        except StoreMissing:
            return None

    def find_meant(self, name_or_id: str) -> Ref | None:
        """The ref of that name, or None where only an id can be meant. Raises as `find`."""
        try:
            return self.find(checked_name(name_or_id))
        except UsageError:
            return None

    def find_sound(self, name: str) -> Ref | None:
        """The ref of that name; None also for a damaged one, for who is about to replace it."""
        try:
            return self.find(name)
        except StoreDamaged:
            return None

    def write(self, name: str, block_id: str, root: str, *, pinned: bool, created: str) -> None:
        """Lead `name` to a block, whatever it led to before."""
        says = RefFile(block=block_id, root=root, pinned=pinned, created=created)
        content = canonical_json(records.plain(says))
        durable.write(self.path(name), content, draft=self._drafts / f"ref-{os.urandom(8).hex()}")

    def rename(self, old: str, new: str) -> None:
        os.rename(self.path(old), self.path(new))
        durable.sync_folder(self.folder)

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            os.unlink(self.path(name))
        durable.sync_folder(self.folder)
