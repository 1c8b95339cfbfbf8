"""The way of a block into a library: a draft that its writer alone works on, then a file under its
id, then a name.

Promises: a block is either completely there or not there, whatever kills a writer; what a killed
writer left is told from what a living one is working on (docs/format.md, "Write order").
Deliberately does not know: what a block says.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from taliesin.host import clock, durable, locks
from taliesin.host.locks import Lock
from taliesin.store import blockfile
from taliesin.store.blockfile import BlockFile
from taliesin.store.folder import Folder
from taliesin.store.refs import Refs

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from taliesin.store.header import BlockHeader

# Beside the folder that it is for, so that it can be held while the folder is removed.
_LOCK_SUFFIX = ".lock"


class Draft(NamedTuple):
    """A block file that is whole and has no place yet; id and root as hexadecimal digests."""

    path: Path
    block_id: str
    root: str


class Writers:
    """The writers of one library: their common lock, and the folders in which each makes drafts."""

    def __init__(self, folder: Folder, *, lock_seconds: float) -> None:
        """lock_seconds: how long to wait for another writer."""
        self._folder = folder
        self._lock = Lock(
            folder.lock,
            seconds=lock_seconds,
            busy=f"another process has been writing to the library for {lock_seconds:.0f} s",
            hint="wait for it, or look for a process that hangs",
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the writers' lock, once more if it is held.

        Raises:
            StoreLocked: another kept it for too long. StoreFull: the library cannot be written, or
            its file system has no locks.
        """
        with self._lock.held():
            yield

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A folder in `tmp/` that is this writer's while it is in use, and gone afterwards."""
        folder = self._folder.drafts / os.urandom(8).hex()
        owned = Lock(_lock_of(folder), seconds=0.0, busy="a draft's lock is taken")
        with self.locked():
            self.remove_leftovers()
            owned.acquire()
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            # The lock file last and while it is held: who finds it gone finds no folder either.
            shutil.rmtree(folder, ignore_errors=True)
            owned.path.unlink(missing_ok=True)
            owned.release()

    def leftovers(self) -> Sequence[Path]:
        """What killed writers left in `tmp/`; to be asked under the lock."""
        there = sorted(self._folder.drafts.iterdir())
        living = {path for path in there if path.suffix == _LOCK_SUFFIX and locks.is_held(path)}
        dead = [path for path in there if path not in living and _lock_of(path) not in living]
        return [path for path in dead if os.path.lexists(path)]  # not of one that just ended

    def remove_leftovers(self) -> None:
        """Remove what `leftovers` finds. Under the lock."""
        for path in self.leftovers():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + _LOCK_SUFFIX)


def write(
    folder: Path, header: BlockHeader, payload: ReadableBuffer | Sequence[ReadableBuffer]
) -> Draft:
    """A new block file in `folder`, a writer's own. Raises as `blockfile.write`."""
    path = folder / "draft"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
    try:
        block_id = blockfile.write(fd, header, payload)
    finally:
        os.close(fd)
    with BlockFile.open(path) as written:
        return Draft(path, block_id, written.root)


def publish(folder: Folder, refs: Refs, draft: Draft, name: str) -> None:
    """Move the draft to its place and name it, under the lock. One that was moved already is only
    named.
    """
    target = folder.block(draft.block_id)
    existed = os.path.lexists(target)
    pinned = (ref := refs.find_sound(name)) is not None and ref.pinned
    try:
        if draft.path.exists():
            if not target.parent.exists():
                target.parent.mkdir(mode=0o700)
                durable.sync_folder(target.parent.parent)
            # An existing file is replaced by the same bytes: if it was damaged, that mends it.
            os.rename(draft.path, target)
            durable.sync_folder(target.parent)
        refs.write(name, draft.block_id, draft.root, pinned=pinned, created=clock.now())
    except BaseException:
        # Unless only the last flush failed and the name stands.
        named = (ref := refs.find_sound(name)) is not None and ref.block_id == draft.block_id
        if not existed and not named:
            target.unlink(missing_ok=True)
        raise


def remove(folder: Folder, block_id: str) -> None:
    """Remove the file of a block, if it is there. Under the lock, and after its names."""
    path = folder.block(block_id)
    path.unlink(missing_ok=True)
    if path.parent.exists():
        durable.sync_folder(path.parent)
