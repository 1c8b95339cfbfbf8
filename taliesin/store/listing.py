"""What a library holds, line by line: its names and blocks, read from the index after that was
brought up to what the files say.

Promises: a listing of an unchanged library opens no block; what others changed is seen at once.
Deliberately does not know: damage within a file, which `open` and `check` find.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from taliesin.errors import FormatError, StoreDamaged, StoreMissing, UnsupportedVersion
from taliesin.host.canonical import canonical_json
from taliesin.store.blockfile import BlockFile, identity_of
from taliesin.store.folder import Folder, id_of_block_file
from taliesin.store.index import BlockRow, Changes, Index
from taliesin.store.refs import Ref, Refs, name_of

# A change within the clock tick of an earlier one leaves the change time as it was: a folder this
# young proves nothing.
_RACY_SECONDS = 2.0


class BlockInfo(NamedTuple):
    """One line of a listing: a name and the block it leads to, or a block without a name.

    created: UTC, ISO 8601; last_used: Unix time, None if never; recipe_id: SHA-256 of the canonical
    recipe; problem: why the block cannot be used, with the fields that are not known then empty or
    0.
    """

    name: str | None
    id: str
    title: str
    created: str
    equals: str
    n_tokens: int
    n_tail: int
    file_bytes: int
    payload_bytes: int
    part_index: int
    part_count: int
    recipe_id: str
    root: str
    pinned: bool
    last_used: float | None
    problem: str | None


def recipe_id(recipe: Mapping[str, object]) -> str:
    """SHA-256 of the canonical recipe: equal for blocks that one engine can use."""
    return hashlib.sha256(canonical_json(dict(recipe))).hexdigest()


def lines(folder: Folder, refs: Refs, index: Index) -> list[BlockInfo]:
    """Every name with its block, sorted by name, then the blocks without a name."""
    while True:
        generation = index.generation
        _synchronise(folder, refs, index)
        named, blocks, used = index.refs(), index.blocks(), index.used()
        if index.generation == generation:
            break
    found = [line(ref, blocks.get(ref.block_id), used.get(ref.block_id)) for ref in named]
    for block_id in sorted(blocks.keys() - {ref.block_id for ref in named}):
        found.append(line(None, blocks[block_id], used.get(block_id)))
    return found


def line(ref: Ref | None, row: BlockRow | None, last_used: float | None) -> BlockInfo:
    """The line of one block: its name if it has one, and its file if there is one."""
    name, pinned = (ref.name, ref.pinned) if ref else (None, False)
    if row is None:
        assert ref is not None
        return BlockInfo(
            name=name,
            id=ref.block_id,
            title="",
            created=ref.created,
            equals="",
            n_tokens=0,
            n_tail=0,
            file_bytes=0,
            payload_bytes=0,
            part_index=0,
            part_count=1,
            recipe_id="",
            root=ref.root,
            pinned=pinned,
            last_used=last_used,
            problem="the block is missing" if ref.block_id else "the name is damaged",
        )
    another = row.problem is None and ref is not None and row.root != ref.root
    return BlockInfo(
        name=name,
        id=row.id,
        title=row.title,
        created=row.created,
        equals=row.equals,
        n_tokens=row.n_tokens,
        n_tail=row.n_tail,
        file_bytes=row.size,
        payload_bytes=row.payload_bytes,
        part_index=row.part_index,
        part_count=row.part_count,
        recipe_id=row.recipe_id,
        root=ref.root if ref else row.root,
        pinned=pinned,
        last_used=last_used,
        problem="another block under this id" if another else row.problem,
    )


def read_block_row(path: Path, status: os.stat_result) -> BlockRow:
    """The row of the block at `path`; one with a `problem` where its header cannot be read."""
    try:
        with BlockFile.open(path) as block:
            header, layout = block.header, block.layout
            return BlockRow(
                id=path.stem,
                stamp=block.identity.stamp,
                size=block.identity.size,
                root=block.root,
                title=header.title,
                created=header.created,
                equals=header.equals,
                n_tokens=layout.n_tokens,
                n_tail=layout.n_tail,
                payload_bytes=layout.payload_bytes,
                part_index=header.part.index,
                part_count=header.part.count,
                recipe_id=recipe_id(header.recipe),
                problem=None,
            )
    except (FormatError, StoreDamaged, StoreMissing, UnsupportedVersion) as error:
        return BlockRow(
            id=path.stem,
            stamp=identity_of(status).stamp,
            size=status.st_size,
            root="",
            title="",
            created="",
            equals="",
            n_tokens=0,
            n_tail=0,
            payload_bytes=0,
            part_index=0,
            part_count=1,
            recipe_id="",
            problem=error.message,
        )


# -- scanning --------------------------------------------------------------------------------------


def _synchronise(folder: Folder, refs: Refs, index: Index) -> None:
    """Bring the index up to what the files say."""
    known = index.folder_stamps()
    changes = Changes({}, [], [], [], [], [])
    now_ns = time.time_ns()
    # Refs before blocks: a block is there before its ref, so no ref seen here misses a block that
    # was just stored.
    status = folder.refs.stat()
    if known.get("refs") != identity_of(status).stamp:
        changes.folders["refs"] = _settled_stamp(status, now_ns)
        _scan_refs(refs, index, changes)
    there = set()
    with os.scandir(folder.blocks) as entries:
        for entry in entries:
            if len(entry.name) != 2 or not entry.is_dir(follow_symlinks=False):
                continue
            there.add(entry.name)
            status = entry.stat(follow_symlinks=False)
            if known.get(entry.name) != identity_of(status).stamp:
                changes.folders[entry.name] = _settled_stamp(status, now_ns)
                _scan_blocks(Path(entry.path), index, changes)
    for gone in known.keys() - there - {"refs"}:
        changes.gone_folders.append(gone)
        changes.gone_blocks.extend(index.block_stamps(gone))
    if any(changes):
        index.apply(changes)


def _scan_refs(refs: Refs, index: Index, changes: Changes) -> None:
    known = index.ref_stamps()
    with os.scandir(os.fsencode(refs.folder)) as entries:
        for entry in entries:
            name = name_of(entry.name)
            if name is None:
                continue
            try:
                stamp = identity_of(entry.stat(follow_symlinks=False)).stamp
                if known.pop(entry.name, None) != stamp:
                    changes.refs.append(refs.read(entry.name))
            except (FileNotFoundError, StoreMissing):  # removed meanwhile
                changes.gone_refs.append(entry.name)
            except StoreDamaged:
                changes.refs.append(Ref(entry.name, stamp, name, "", "", False, ""))
    changes.gone_refs.extend(known)


def _scan_blocks(folder: Path, index: Index, changes: Changes) -> None:
    known = index.block_stamps(folder.name)
    with os.scandir(folder) as entries:
        for entry in entries:
            block_id = id_of_block_file(entry.name, folder.name)
            if block_id is None:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if known.pop(block_id, None) != identity_of(status).stamp:
                changes.blocks.append(read_block_row(Path(entry.path), status))
    changes.gone_blocks.extend(known)


def _settled_stamp(status: os.stat_result, now_ns: int) -> str:
    """The stamp of a folder about to be scanned; none for one so young that a later change could
    leave the same.
    """
    settled = now_ns - max(status.st_mtime_ns, status.st_ctime_ns) >= _RACY_SECONDS * 1e9
    return identity_of(status).stamp if settled else ""
