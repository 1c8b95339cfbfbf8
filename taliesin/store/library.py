"""A library of blocks: opening it, finding blocks by name or id, and changing what names lead to
(docs/format.md, "Library").

Promises: a block is either completely there or not there, whatever kills a writer; names never
become paths; readers need no lock. Deliberately does not know: what a recipe or a payload means,
and whether a block suits an engine. The parts: `folder` (what lies where), `drafts` (writing),
`listing` (the index), `gc`, `exchange` (bundles), `trust` (what was hashed already); `check` walks
over all of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

from taliesin.errors import StoreDamaged, StoreMissing, UsageError
from taliesin.host import clock
from taliesin.store import drafts, listing, trust
from taliesin.store.blockfile import BlockFile
from taliesin.store.drafts import Draft, Writers
from taliesin.store.folder import REBUILD_LOCK, Folder, default_path, storage_errors
from taliesin.store.index import Index
from taliesin.store.listing import BlockInfo, recipe_id
from taliesin.store.refs import Refs, checked_name
from taliesin.store.trust import Policy

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from taliesin.store.exchange import ImportReport
    from taliesin.store.gc import GcReport
    from taliesin.store.header import BlockHeader

__all__ = ["REBUILD_LOCK", "BlockInfo", "Library", "Policy", "default_path", "recipe_id"]


class Library:
    """A library folder. Safe for several processes; one object is for one thread."""

    def __init__(
        self, path: Path | None = None, create: bool = True, *, lock_seconds: float = 30.0
    ) -> None:
        """Open the library at `path` (default: `default_path()`), with `create` make it if it is
        not there.

        lock_seconds: how long a writer waits for another one.

        Raises:
            StoreMissing: no library there. FormatError: a folder with other things in it.
            UnsupportedVersion: a newer library. StoreDamaged: a symbolic link in place of a part of
            it. StoreFull: it cannot be created.
        """
        self.path = (default_path() if path is None else path).absolute()
        self.folder = Folder(self.path, create=create)
        self.index = Index(self.folder.index)
        self.refs = Refs(self.folder.refs, drafts=self.folder.drafts)
        self._writers = Writers(self.folder, lock_seconds=lock_seconds)

    def close(self) -> None:
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # -- looking -----------------------------------------------------------------------------------

    def list(self) -> list[BlockInfo]:
        """Every name with its block, sorted by name, then the blocks without a name.

        Reads what was added or replaced since the last time, which folder times tell; damage within
        a file is for `check` to find.
        """
        with storage_errors(self.path):
            return listing.lines(self.folder, self.refs, self.index)

    def info(self, name_or_id: str) -> BlockInfo:
        """The line of the listing for one block. Raises like `open`."""
        ref = self.refs.find_meant(name_or_id)
        block_id = ref.block_id if ref else self.folder.find_id(name_or_id)
        path = self.block_path(block_id)
        try:
            row = listing.read_block_row(path, path.lstat())
        except FileNotFoundError:
            if ref is None:
                raise StoreMissing("no such block", got=name_or_id, where=self.path) from None
            row = None
        return listing.line(ref, row, self.index.last_used(block_id))

    def open(self, name_or_id: str) -> BlockFile:
        """The block of that name, or whose id begins with that (8 digits or more), its header
        validated.

        Raises:
            StoreMissing: no such name or id. UsageError: the prefix fits several blocks.
            StoreDamaged, FormatError, UnsupportedVersion: the name or the block is not as it must
            be.
        """
        try:
            return self._open(name_or_id)
        except StoreMissing:
            pass  # a writer may have replaced the name between two steps: look once more
        try:
            return self._open(name_or_id)
        except StoreMissing:
            ref = self.refs.find_meant(name_or_id)
            if ref is None:
                raise
            raise StoreDamaged(
                f"the block of the name {ref.name!r} is missing",
                expected=ref.block_id,
                where=self.block_path(ref.block_id),
                hint="taliesin check --repair removes such names",
            ) from None

    def _open(self, name_or_id: str) -> BlockFile:
        ref = self.refs.find_meant(name_or_id)
        block_id = ref.block_id if ref else self.folder.find_id(name_or_id)
        block = BlockFile.open(self.block_path(block_id))
        if ref and block.root != ref.root:
            block.close()
            raise StoreDamaged(
                f"the file of {ref.name!r} holds another block",
                expected=ref.root,
                got=block.root,
                where=block.path,
            )
        return block

    def block_path(self, block_id: str) -> Path:
        """Where the block of this id is, if it is. Raises StoreDamaged if its folder is a symbolic
        link.
        """
        return self.folder.block(block_id)

    # -- changing ----------------------------------------------------------------------------------

    def put(
        self,
        name: str,
        header: BlockHeader,
        payload: ReadableBuffer | Sequence[ReadableBuffer],
        replace: bool = False,
    ) -> BlockInfo:
        """Store a block under `name`. The same content gives the same id.

        Raises:
            UsageError: the name is malformed, or taken and `replace` is false. FormatError: see
            `blockfile.write`.
            StoreFull, StoreLocked: nothing was stored.
        """
        name = checked_name(name)
        with storage_errors(self.path):
            self._refuse_taken(name, replace)
            with self.workspace() as folder:
                draft = drafts.write(folder, header, payload)
                with self.locked():
                    self._refuse_taken(name, replace)
                    self.name_block(draft, name)
        return self.info(name)

    def supersede(
        self,
        old_id: str,
        header: BlockHeader,
        payload: ReadableBuffer | Sequence[ReadableBuffer],
        prove: Callable[[BlockFile], None],
    ) -> Sequence[BlockInfo]:
        """Store a new generation of the block `old_id` and lead all its names to it; the lines of
        those names.

        prove: called with the new block, read back from disk, before a name leads to it. What it
        raises leaves the library as it was; the old block goes only after the last name was moved.
        A name that was given to something else meanwhile is left alone; none is moved where none is
        left.

        Raises:
            StoreMissing: no name leads to the old block. FormatError, StoreFull, StoreLocked: as
            `put`.
        """
        with storage_errors(self.path), self.workspace() as folder:
            draft = drafts.write(folder, header, payload)
            with BlockFile.open(draft.path) as written:
                prove(written)
            with self.locked():
                return self._lead(old_id, draft)

    def lead(self, old_id: str, new_id: str) -> Sequence[BlockInfo]:
        """Lead all names of one block to another that is here already, and remove the first; the
        lines of those names.
        """
        with storage_errors(self.path), self.locked(), self.open(new_id) as block:
            return self._lead(old_id, Draft(block.path, new_id, block.root))

    def _lead(self, old_id: str, draft: Draft) -> Sequence[BlockInfo]:
        names = [line.name for line in self.list() if line.id == old_id and line.name is not None]
        if not names:
            raise StoreMissing(
                "no name leads to the block any more", got=old_id[:12], where=self.path
            )
        for name in names:
            drafts.publish(self.folder, self.refs, draft, name)
        if draft.block_id != old_id:
            self._remove_block_unless_named(old_id)
        return [self.info(name) for name in names]

    def name_block(self, draft: Draft, name: str) -> None:
        """Lead `name` to the block of a draft, and remove the one it led to if no other name leads
        there. Under the lock.
        """
        before = self.refs.find_sound(name)
        drafts.publish(self.folder, self.refs, draft, name)
        if before and before.block_id != draft.block_id:
            self._remove_block_unless_named(before.block_id)

    def rename(self, old: str, new: str) -> BlockInfo:
        """Give the block another name; a block without one (`old` is its id) gets its first."""
        new = checked_name(new)
        with storage_errors(self.path), self.locked():
            self._refuse_taken(new, replace=False)
            ref = self.refs.find_meant(old)
            if ref:
                self.refs.rename(ref.name, new)
            else:
                with self.open(old) as block:
                    self.refs.write(
                        new,
                        cast(str, block.block_id),
                        block.root,
                        pinned=False,
                        created=clock.now(),
                    )
        return self.info(new)

    def remove(self, name_or_id: str) -> Sequence[BlockInfo]:
        """Remove a name, and its block when no other name leads to it; by id, the block and all its
        names.
        """
        with storage_errors(self.path), self.locked():
            ref = self.refs.find_meant(name_or_id)
            block_id = ref.block_id if ref else self.folder.find_id(name_or_id)
            lines = [
                line
                for line in self.list()
                if line.id == block_id and (ref is None or line.name == ref.name)
            ]
            self.refs.remove(line.name for line in lines if line.name is not None)
            self._remove_block_unless_named(block_id)
        return lines

    def pin(self, name: str, pinned: bool = True) -> BlockInfo:
        """Keep the block from `gc`, or with `pinned=False` no longer."""
        with storage_errors(self.path), self.locked():
            ref = self.refs.find_meant(name)
            if ref is None:
                raise StoreMissing("no block of that name", got=name, where=self.path)
            self.refs.write(ref.name, ref.block_id, ref.root, pinned=pinned, created=ref.created)
        return self.info(name)

    def _refuse_taken(self, name: str, replace: bool) -> None:
        if not replace and os.path.lexists(self.refs.path(name)):
            raise UsageError(
                f"a block of the name {name!r} exists",
                where=self.path,
                hint="choose another name; `taliesin save` takes --replace",
            )

    def _remove_block_unless_named(self, block_id: str) -> None:
        if all(line.id != block_id or line.name is None for line in self.list()):
            drafts.remove(self.folder, block_id)

    # -- the parts in modules of their own ---------------------------------------------------------

    def gc(self, budget_bytes: int, dry_run: bool = False) -> GcReport:
        """Remove blocks until the files take at most `budget_bytes`: without a name first, then
        least recently used.

        A block that was never used counts as used when it was stored. Pinned blocks stay. A block's
        names go with it.
        """
        from taliesin.store import gc

        return gc.collect(self, budget_bytes, dry_run=dry_run)

    def export(self, names: Sequence[str], path: Path) -> int:
        """Write the blocks of these names (or ids) into the new file `path`; its size in bytes
        comes back.
        """
        from taliesin.store import exchange

        return exchange.export(self, names, path)

    def import_(
        self,
        path: Path,
        replace: bool = False,
        accept: Callable[[str, BlockFile], None] | None = None,
    ) -> ImportReport:
        """Take in all blocks of a bundle; nothing enters unless every one is intact.

        accept: called with each name and its verified block before anything enters; what it raises
        ends the import.

        Raises:
            UsageError: a name is taken by another block and `replace` is false.
            FormatError, UnsupportedVersion, StoreDamaged: the bundle is not as it must be.
        """
        from taliesin.store import exchange

        return exchange.import_(self, path, replace=replace, accept=accept)

    def mark_used(self, block_id: str) -> None:
        """Note that the block was used now, for `gc`."""
        self.index.mark_used(block_id, time.time())

    def needs_verification(self, block: BlockFile, policy: Policy) -> bool:
        """As `trust.needs_verification`."""
        return trust.needs_verification(self.index, block, policy)

    def record_verified(self, block: BlockFile) -> None:
        """As `trust.record_verified`."""
        trust.record_verified(self.index, block)

    def locked(self) -> AbstractContextManager[None]:
        """Hold the writers' lock. As `Writers.locked`."""
        return self._writers.locked()

    def workspace(self) -> AbstractContextManager[Path]:
        """A folder for drafts. As `Writers.workspace`."""
        return self._writers.workspace()

    def leftovers(self) -> Sequence[Path]:
        """What killed writers left. As `Writers.leftovers`."""
        return self._writers.leftovers()

    def remove_leftovers(self) -> None:
        """Remove what `leftovers` finds. Under the lock."""
        self._writers.remove_leftovers()
