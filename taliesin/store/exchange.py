"""Blocks of a library out to a bundle, and those of a bundle in.

Promises: nothing of a bundle enters unless every block in it is intact and every name is free or
leads there already. Deliberately does not know: how a bundle lies in its file (`bundle`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, cast

from taliesin.errors import FormatError, StoreDamaged, UsageError
from taliesin.store import bundle
from taliesin.store.blockfile import SUFFIX, BlockFile
from taliesin.store.drafts import Draft
from taliesin.store.folder import storage_errors
from taliesin.store.listing import BlockInfo
from taliesin.store.refs import checked_name

if TYPE_CHECKING:
    from taliesin.store.library import Library


class ImportReport(NamedTuple):
    """added: names that came in; present: names that led to the same block already; names_hashed:
    whether the bundle had a hash over its names (those of minor 0 have none).
    """

    added: list[BlockInfo]
    present: list[str]
    names_hashed: bool


def export(library: Library, names: Sequence[str], path: Path) -> int:
    """Write the blocks of these names (or ids) into the new file `path`. See `Library.export`."""
    if not names:
        raise UsageError("nothing to export", expected="at least one name")
    with storage_errors(path), ExitStack() as stack:
        blocks = {}
        for name_or_id in names:
            ref = library.refs.find_meant(name_or_id)
            block = stack.enter_context(library.open(name_or_id))
            blocks[ref.name if ref else cast(str, block.block_id)] = block
        return bundle.write(path, blocks)


def import_(
    library: Library,
    path: Path,
    *,
    replace: bool,
    accept: Callable[[str, BlockFile], None] | None,
) -> ImportReport:
    """Take in all blocks of a bundle. See `Library.import_`."""
    with (
        storage_errors(library.path),
        library.workspace() as folder,
        bundle.reading(path) as (manifest, members),
    ):
        entries = manifest.blocks
        for entry in entries:
            if checked_name(entry.name) != entry.name:
                raise FormatError(
                    "a name in the bundle is not in NFC", got=repr(entry.name), where=path
                )
            _refuse_conflict(library, entry, replace)
        for block_id, size, stream in members:
            draft = folder / (block_id + SUFFIX)
            _copy_hashed(stream, draft, size, block_id, where=path)
            with BlockFile.open(draft) as block:
                block.verify()
                for entry in entries:
                    if entry.id == block_id:
                        _accept(entry, block, accept, where=path)
        added, present = [], []
        with library.locked():
            for entry in entries:
                _refuse_conflict(library, entry, replace)
            for entry in entries:
                there = library.refs.find_sound(entry.name)
                if there and there.block_id == entry.id and library.block_path(entry.id).exists():
                    present.append(entry.name)
                    continue
                checked = Draft(folder / (entry.id + SUFFIX), entry.id, entry.root)
                library.name_block(checked, entry.name)
                added.append(entry.name)
    return ImportReport([library.info(name) for name in added], present, manifest.hashed)


def _accept(
    entry: bundle.Entry,
    block: BlockFile,
    accept: Callable[[str, BlockFile], None] | None,
    *,
    where: Path,
) -> None:
    if entry.root != block.root:
        raise FormatError(
            "the bundle's manifest gives another root",
            expected=block.root,
            got=entry.root,
            where=where,
        )
    if accept is not None:
        accept(entry.name, block)


def _refuse_conflict(library: Library, entry: bundle.Entry, replace: bool) -> None:
    ref = None if replace else library.refs.find(entry.name)
    if ref and ref.block_id != entry.id:
        raise UsageError(
            f"the name {entry.name!r} belongs to another block here",
            expected=entry.id[:12],
            got=ref.block_id[:12],
            hint="rename that one, or import with --replace",
        )


def _copy_hashed(stream: IO[bytes], target: Path, size: int, block_id: str, *, where: Path) -> None:
    """Copy `size` bytes into the new file `target`, fsynced. Raises StoreDamaged unless their
    SHA-256 is `block_id`.
    """
    sha = hashlib.sha256()
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
    with os.fdopen(fd, "wb") as file:
        copied = 0
        while copied < size and (piece := stream.read(min(1 << 20, size - copied))):
            sha.update(piece)
            file.write(piece)
            copied += len(piece)
        file.flush()
        os.fsync(file.fileno())
    if copied != size or sha.hexdigest() != block_id:
        raise StoreDamaged(
            f"block {block_id[:12]} of the bundle is damaged",
            expected=f"{size} bytes with that SHA-256",
            got=f"{copied} bytes with SHA-256 {sha.hexdigest()[:12]}",
            where=where,
            hint="copy the bundle again",
        )
