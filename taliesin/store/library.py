"""A folder of blocks with names, an index and a lock (docs/format.md, "Library").

Promises: a block is either completely there or not there, whatever kills a writer; names never
become paths; symbolic links are not followed; readers need no lock. Deliberately does not know:
what a recipe or a payload means, and whether a block suits an engine.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, NamedTuple, Self, cast

from taliesin.errors import (
    FormatError,
    StoreDamaged,
    StoreFull,
    StoreLocked,
    StoreMissing,
    UnsupportedVersion,
    UsageError,
)
from taliesin.host import clock, durable
from taliesin.host.canonical import canonical_json, is_digest, parse_canonical_json
from taliesin.store import blockfile
from taliesin.store.blockfile import SUFFIX, BlockFile, identity_of
from taliesin.store.header import BlockHeader
from taliesin.store.index import BlockRow, Changes, Index
from taliesin.store.refs import Ref, Refs, checked_name, name_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer
    from filelock import FileLock

    from taliesin.store import bundle

VERSION = 1
_MARKER = "library.json"
_FORMAT = "taliesin-library"
_FOLDERS = ("blocks", "refs", "quarantine", "tmp")
_INDEX = "index.sqlite3"
_LOCK = "lock"
REBUILD_LOCK = "rebuild.lock"
OWN_NAMES = frozenset(
    (
        _MARKER,
        _LOCK,
        REBUILD_LOCK,
        _INDEX,
        f"{_INDEX}-wal",
        f"{_INDEX}-shm",
        f"{_INDEX}-journal",
        *_FOLDERS,
    )
)
_MAX_MARKER_BYTES = 4096
_ID_PREFIX = re.compile(r"[0-9a-f]{8,64}")
# A change within the clock tick of an earlier one leaves the change time as it was: a file this
# young proves nothing.
_RACY_SECONDS = 2.0

Policy = Literal["always", "once", "never"]
POLICIES: tuple[Policy, ...] = ("always", "once", "never")


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


class GcReport(NamedTuple):
    """removed: lines of the listing, in order of removal. Pinned blocks can exceed the budget."""

    removed: list[BlockInfo]
    freed_bytes: int
    kept_bytes: int
    budget_bytes: int


class ImportReport(NamedTuple):
    """added: names that came in; present: names that led to the same block already."""

    added: list[BlockInfo]
    present: list[str]


# Within `Library`, `list` is the method.
Listing = list[BlockInfo]


def default_path() -> Path:
    """Where a user's library is unless told otherwise."""
    from platformdirs import user_data_path

    return user_data_path("taliesin") / "library"


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
            UnsupportedVersion: a newer
            library. StoreDamaged: a symbolic link in place of a part of it. StoreFull: it cannot be
            created.
        """
        given = default_path() if path is None else path
        self.path = given.absolute()
        self._lock_seconds = lock_seconds
        self._lock: FileLock | None = None
        with storage_errors(self.path):
            if not self._has_marker():
                if not create:
                    raise StoreMissing(
                        "no library there", where=self.path, hint="taliesin save makes one"
                    )
                self._create()
            self._check_version()
            for name in (*_FOLDERS, _LOCK, REBUILD_LOCK, _INDEX):
                self._refuse_link(self.path / name)
        self.index = Index(self.path / _INDEX)
        self.refs = Refs(self.path / "refs", drafts=self.path / "tmp")

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
            while True:
                generation = self.index.generation
                self._synchronise()
                refs, blocks, used = self.index.refs(), self.index.blocks(), self.index.used()
                if self.index.generation == generation:
                    break
        lines = [_info(ref, blocks.get(ref.block_id), used.get(ref.block_id)) for ref in refs]
        for block_id in sorted(blocks.keys() - {ref.block_id for ref in refs}):
            lines.append(_info(None, blocks[block_id], used.get(block_id)))
        return lines

    def info(self, name_or_id: str) -> BlockInfo:
        """The line of the listing for one block. Raises like `open`."""
        ref = self._find_ref(name_or_id)
        block_id = ref.block_id if ref else self._find_id(name_or_id)
        path = self.block_path(block_id)
        try:
            status = path.lstat()
        except FileNotFoundError:
            if ref is None:
                raise StoreMissing("no such block", got=name_or_id, where=self.path) from None
            row = None
        else:
            row = _read_block_row(path, status)
        return _info(ref, row, self.index.last_used(block_id))

    def open(self, name_or_id: str) -> BlockFile:
        """The block of that name, or whose id begins with that (8 digits or more), its header
        validated.

        Raises:
            StoreMissing: no such name or id. UsageError: the prefix fits several blocks.
            StoreDamaged, FormatError, UnsupportedVersion: the name or the block is not as it must
            be.
        """
        for attempt in (1, 2):
            ref = self._find_ref(name_or_id)
            block_id = ref.block_id if ref else self._find_id(name_or_id)
            try:
                block = BlockFile.open(self.block_path(block_id))
            except StoreMissing:
                # A writer may have replaced the name between the two steps; then the second look
                # succeeds.
                if attempt == 1:
                    continue
                if ref is None:
                    raise
                raise StoreDamaged(
                    f"the block of the name {ref.name!r} is missing",
                    expected=block_id,
                    where=self.block_path(block_id),
                    hint="taliesin check --repair removes such names",
                ) from None
            if ref and block.root != ref.root:
                block.close()
                raise StoreDamaged(
                    f"the file of {ref.name!r} holds another block",
                    expected=ref.root,
                    got=block.root,
                    where=block.path,
                )
            return block
        raise AssertionError("unreachable")

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
            with self._workspace() as folder:
                draft, block_id, root = _written(folder, header, payload)
                with self.locked():
                    self._refuse_taken(name, replace)
                    before = self.refs.find_sound(name)
                    self._publish(draft, name, block_id, root)
                    if before and before.block_id != block_id:
                        self._remove_block_unless_named(before.block_id)
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
        with storage_errors(self.path), self._workspace() as folder:
            draft, block_id, root = _written(folder, header, payload)
            with BlockFile.open(draft) as written:
                prove(written)
            with self.locked():
                names = self._names_of(old_id)
                for name in names:
                    self._publish(draft, name, block_id, root)
                if block_id != old_id:
                    self._remove_block_unless_named(old_id)
        return [self.info(name) for name in names]

    def lead(self, old_id: str, new_id: str) -> Sequence[BlockInfo]:
        """Lead all names of one block to another that is here already, and remove the first; the
        lines of those names.
        """
        with storage_errors(self.path), self.locked():
            names = self._names_of(old_id)
            with self.open(new_id) as block:
                for name in names:
                    self._publish(block.path, name, new_id, block.root)
            self._remove_block_unless_named(old_id)
        return [self.info(name) for name in names]

    def _names_of(self, block_id: str) -> Sequence[str]:
        names = [line.name for line in self.list() if line.id == block_id and line.name is not None]
        if not names:
            raise StoreMissing(
                "no name leads to the block any more", got=block_id[:12], where=self.path
            )
        return names

    def rename(self, old: str, new: str) -> BlockInfo:
        """Give the block another name; a block without one (`old` is its id) gets its first."""
        new = checked_name(new)
        with storage_errors(self.path), self.locked():
            self._refuse_taken(new, replace=False)
            ref = self._find_ref(old)
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
            ref = self._find_ref(name_or_id)
            block_id = ref.block_id if ref else self._find_id(name_or_id)
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
            ref = self._find_ref(name)
            if ref is None:
                raise StoreMissing("no block of that name", got=name, where=self.path)
            self.refs.write(ref.name, ref.block_id, ref.root, pinned, ref.created)
        return self.info(name)

    def gc(self, budget_bytes: int, dry_run: bool = False) -> GcReport:
        """Remove blocks until the files take at most `budget_bytes`: without a name first, then
        least recently used.

        A block that was never used counts as used when it was stored. Pinned blocks stay. A block's
        names go with it.
        """
        if budget_bytes < 0:
            raise UsageError("a budget is not negative", got=budget_bytes)
        with storage_errors(self.path), ExitStack() as stack:
            if not dry_run:
                stack.enter_context(self.locked())
                self.remove_leftovers()
            lines = [line for line in self.list() if line.file_bytes]
            names: dict[str, Listing] = {}
            for line in lines:
                names.setdefault(line.id, []).append(line)

            def age(block_id: str) -> tuple[bool, float]:
                first = names[block_id][0]
                try:
                    return first.name is not None, first.last_used or self.block_path(
                        block_id
                    ).stat().st_mtime
                except FileNotFoundError:  # removed since, during a dry run
                    return False, 0.0

            kept = sum(group[0].file_bytes for group in names.values())
            before = kept
            removed: Listing = []
            for block_id in sorted(
                (i for i in names if not any(line.pinned for line in names[i])), key=age
            ):
                if kept <= budget_bytes:
                    break
                if not dry_run:
                    self.refs.remove(line.name for line in names[block_id] if line.name is not None)
                    self._remove_block(block_id)
                kept -= names[block_id][0].file_bytes
                removed += names[block_id]
        return GcReport(removed, before - kept, kept, budget_bytes)

    # -- trust -------------------------------------------------------------------------------------

    def mark_used(self, block_id: str) -> None:
        """Note that the block was used now, for `gc`."""
        self.index.mark_used(block_id, time.time())

    def needs_verification(self, block: BlockFile, policy: Policy) -> bool:
        """Whether the payload must be hashed when it is read; `once`: unless this file was, since
        its last change.
        """
        if policy not in POLICIES:
            raise UsageError(
                "unknown verification policy", expected=" or ".join(POLICIES), got=policy
            )
        if policy != "once" or block.block_id is None:
            return policy != "never"
        return self.index.verified_stamp(block.block_id) != block.identity.stamp

    def record_verified(self, block: BlockFile) -> None:
        """Note that the payload was hashed and is right; not for a file that changed meanwhile or a
        moment ago.
        """
        settled = time.time() - block.identity.ctime_ns / 1e9 >= _RACY_SECONDS
        if block.block_id is not None and settled and block.unchanged():
            self.index.set_verified(block.block_id, block.identity.stamp, time.time())

    # -- bundles -----------------------------------------------------------------------------------

    def export(self, names: Sequence[str], path: Path) -> int:
        """Write the blocks of these names (or ids) into the new file `path`; its size in bytes
        comes back.
        """
        from taliesin.store import bundle

        if not names:
            raise UsageError("nothing to export", expected="at least one name")
        with storage_errors(path), ExitStack() as stack:
            blocks = {}
            for name_or_id in names:
                ref = self._find_ref(name_or_id)
                block = stack.enter_context(self.open(name_or_id))
                blocks[ref.name if ref else cast(str, block.block_id)] = block
            return bundle.write(path, blocks)

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
        from taliesin.store import bundle

        with (
            storage_errors(self.path),
            self._workspace() as folder,
            bundle.reading(path) as (entries, members),
        ):
            for entry in entries:
                if checked_name(entry.name) != entry.name:
                    raise FormatError(
                        "a name in the bundle is not in NFC", got=repr(entry.name), where=path
                    )
                self._refuse_conflict(entry, replace)
            for block_id, size, stream in members:
                draft = folder / (block_id + SUFFIX)
                _copy_hashed(stream, draft, size, block_id, path)
                with BlockFile.open(draft) as block:
                    block.verify()
                    for entry in entries:
                        if entry.id != block_id:
                            continue
                        if entry.root != block.root:
                            raise FormatError(
                                "the bundle's manifest gives another root",
                                got=entry.root,
                                where=path,
                            )
                        if accept is not None:
                            accept(entry.name, block)
            added, present = [], []
            with self.locked():
                for entry in entries:
                    self._refuse_conflict(entry, replace)
                for entry in entries:
                    before = self.refs.find_sound(entry.name)
                    if (
                        before
                        and before.block_id == entry.id
                        and self.block_path(entry.id).exists()
                    ):
                        present.append(entry.name)
                        continue
                    self._publish(folder / (entry.id + SUFFIX), entry.name, entry.id, entry.root)
                    if before and before.block_id != entry.id:
                        self._remove_block_unless_named(before.block_id)
                    added.append(entry.name)
        return ImportReport([self.info(name) for name in added], present)

    # -- parts shared with `check` -----------------------------------------------------------------

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the writers' lock, once more if it is held.

        Raises:
            StoreLocked: after `lock_seconds` of waiting. StoreFull: the library cannot be written.
        """
        from filelock import FileLock, Timeout

        if self._lock is None:
            self._lock = FileLock(self.path / _LOCK, timeout=self._lock_seconds, mode=0o600)
        with storage_errors(self.path):
            try:
                self._lock.acquire()
            except Timeout as error:
                raise StoreLocked(
                    "another process has been writing to the library for "
                    f"{self._lock_seconds:.0f} s",
                    where=self.path / _LOCK,
                    hint="wait for it, or look for a process that hangs",
                ) from error
        try:
            yield
        finally:
            self._lock.release()

    def leftovers(self) -> Sequence[Path]:
        """What killed writers left in `tmp/`; to be asked under the lock."""
        found = []
        for path in sorted((self.path / "tmp").iterdir()):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError:
                continue
            except OSError:  # a symbolic link
                found.append(path)
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.append(path)
            except BlockingIOError:
                pass  # its writer lives
            finally:
                os.close(fd)
        return found

    def remove_leftovers(self) -> None:
        """Remove what `leftovers` finds. Under the lock."""
        import shutil

        for path in self.leftovers():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def block_path(self, block_id: str) -> Path:
        """Where the block of this id is, if it is. Raises StoreDamaged if its folder is a symbolic
        link.
        """
        folder = self.path / "blocks" / block_id[:2]
        self._refuse_link(folder)
        return folder / (block_id + SUFFIX)

    # -- opening and creating ----------------------------------------------------------------------

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
            self._refuse_link(self.path / name)
            (self.path / name).mkdir(mode=0o700, exist_ok=True)
        marker = canonical_json({"format": _FORMAT, "version": VERSION})
        # The draft in `tmp/`, where `leftovers` finds what a killed writer left.
        durable.write(
            self.path / _MARKER, marker, draft=self.path / "tmp" / f"marker-{os.urandom(8).hex()}"
        )

    def _check_version(self) -> None:
        path = self.path / _MARKER
        fd = blockfile.open_regular(path)
        with os.fdopen(fd, "rb") as file:
            marker = parse_canonical_json(
                file.read(_MAX_MARKER_BYTES), "the library's marker", path
            )
        version = marker.get("version")
        if isinstance(version, int) and version > VERSION:
            raise UnsupportedVersion(
                f"library of version {version}; this program reads version {VERSION}", where=path
            )
        if marker != {"format": _FORMAT, "version": VERSION}:
            raise FormatError("the library's marker is malformed", where=path)

    def _refuse_link(self, path: Path) -> None:
        if path.is_symlink():
            raise StoreDamaged(
                "a symbolic link in the library is not followed",
                where=path,
                hint="put the real thing in its place",
            )

    # -- scanning ----------------------------------------------------------------------------------

    def _synchronise(self) -> None:
        """Bring the index up to what the files say."""
        known = self.index.folder_stamps()
        changes = Changes({}, [], [], [], [], [])
        now_ns = time.time_ns()
        # Refs before blocks: a block is there before its ref, so no ref seen here misses a block
        # that was just stored.
        refs = self.path / "refs"
        status = refs.stat()
        if known.get("refs") != identity_of(status).stamp:
            changes.folders["refs"] = _settled_stamp(status, now_ns)
            self._scan_refs(os.fsencode(refs), changes)
        folders = set()
        with os.scandir(self.path / "blocks") as entries:
            for entry in entries:
                if len(entry.name) != 2 or not entry.is_dir(follow_symlinks=False):
                    continue
                folders.add(entry.name)
                status = entry.stat(follow_symlinks=False)
                if known.get(entry.name) != identity_of(status).stamp:
                    changes.folders[entry.name] = _settled_stamp(status, now_ns)
                    self._scan_blocks(Path(entry.path), changes)
        for folder in known.keys() - folders - {"refs"}:
            changes.gone_folders.append(folder)
            changes.gone_blocks.extend(self.index.block_stamps(folder))
        if any(changes):
            self.index.apply(changes)

    def _scan_refs(self, folder: bytes, changes: Changes) -> None:
        known = self.index.ref_stamps()
        with os.scandir(folder) as entries:
            for entry in entries:
                name = name_of(entry.name)
                if name is None:
                    continue
                try:
                    stamp = identity_of(entry.stat(follow_symlinks=False)).stamp
                    if known.pop(entry.name, None) != stamp:
                        changes.refs.append(self.refs.read(entry.name))
                except (FileNotFoundError, StoreMissing):  # removed meanwhile
                    changes.gone_refs.append(entry.name)
                except StoreDamaged:
                    changes.refs.append(Ref(entry.name, stamp, name, "", "", False, ""))
        changes.gone_refs.extend(known)

    def _scan_blocks(self, folder: Path, changes: Changes) -> None:
        known = self.index.block_stamps(folder.name)
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
                    changes.blocks.append(_read_block_row(Path(entry.path), status))
        changes.gone_blocks.extend(known)

    def _find_ref(self, name_or_id: str) -> Ref | None:
        """The ref of that name, or None where only an id can be meant."""
        try:
            return self.refs.find(checked_name(name_or_id))
        except UsageError:
            return None

    def _find_id(self, prefix: str) -> str:
        """The id of the only block that begins with `prefix`."""
        found: Sequence[str] = ()
        if _ID_PREFIX.fullmatch(prefix):
            folder = self.path / "blocks" / prefix[:2]
            self._refuse_link(folder)
            if folder.is_dir():
                stems = [
                    name.removesuffix(SUFFIX)
                    for name in os.listdir(folder)
                    if name.endswith(SUFFIX)
                ]
                found = [stem for stem in stems if stem.startswith(prefix) and is_digest(stem)]
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

    # -- writing -----------------------------------------------------------------------------------

    @contextmanager
    def _workspace(self) -> Iterator[Path]:
        """A folder in `tmp/` that is locked while it is in use, and gone afterwards."""
        import shutil

        with self.locked():
            self.remove_leftovers()
            folder = self.path / "tmp" / os.urandom(8).hex()
            folder.mkdir(mode=0o700)
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(fd)

    def _refuse_taken(self, name: str, replace: bool) -> None:
        if not replace and os.path.lexists(self.refs.path(name)):
            raise UsageError(
                f"a block of the name {name!r} exists",
                where=self.path,
                hint="choose another name; `taliesin save` takes --replace",
            )

    def _refuse_conflict(self, entry: bundle.Entry, replace: bool) -> None:
        ref = None if replace else self.refs.find(entry.name)
        if ref and ref.block_id != entry.id:
            raise UsageError(
                f"the name {entry.name!r} belongs to another block here",
                expected=entry.id[:12],
                got=ref.block_id[:12],
                hint="rename that one, or import with --replace",
            )

    def _publish(self, draft: Path, name: str, block_id: str, root: str) -> None:
        """Move the draft to its place and name it, under the lock. One that was moved already is
        only named.
        """
        target = self.block_path(block_id)
        existed = os.path.lexists(target)
        pinned = (ref := self.refs.find_sound(name)) is not None and ref.pinned
        try:
            if draft.exists():
                if not target.parent.exists():
                    target.parent.mkdir(mode=0o700)
                    durable.sync_folder(target.parent.parent)
                # An existing file is replaced by the same bytes: if it was damaged, that mends it.
                os.rename(draft, target)
                durable.sync_folder(target.parent)
            self.refs.write(name, block_id, root, pinned, created=clock.now())
        except BaseException:
            # Unless only the last flush failed and the name stands.
            if not existed and (
                (ref := self.refs.find_sound(name)) is None or ref.block_id != block_id
            ):
                target.unlink(missing_ok=True)
            raise

    def _remove_block_unless_named(self, block_id: str) -> None:
        if all(line.id != block_id or line.name is None for line in self.list()):
            self._remove_block(block_id)

    def _remove_block(self, block_id: str) -> None:
        path = self.block_path(block_id)
        path.unlink(missing_ok=True)
        if path.parent.exists():
            durable.sync_folder(path.parent)


def _settled_stamp(status: os.stat_result, now_ns: int) -> str:
    """The stamp of a folder about to be scanned; none for one so young that a later change could
    leave the same.
    """
    settled = now_ns - max(status.st_mtime_ns, status.st_ctime_ns) >= _RACY_SECONDS * 1e9
    return identity_of(status).stamp if settled else ""


def id_of_block_file(file: str, folder: str) -> str | None:
    """The id that names the block file; None for another file."""
    block_id = file.removesuffix(SUFFIX)
    return (
        block_id
        if file.endswith(SUFFIX) and is_digest(block_id) and block_id.startswith(folder)
        else None
    )


def _info(ref: Ref | None, row: BlockRow | None, last_used: float | None) -> BlockInfo:
    """The line of one block: its name if it has one, and its file if there is one."""
    name, pinned = (ref.name, ref.pinned) if ref else (None, False)
    if row is None:
        assert ref is not None
        missing = "the block is missing" if ref.block_id else "the name is damaged"
        return BlockInfo(
            name,
            ref.block_id,
            "",
            ref.created,
            "",
            0,
            0,
            0,
            0,
            0,
            1,
            "",
            ref.root,
            pinned,
            last_used,
            missing,
        )
    another = row.problem is None and ref is not None and row.root != ref.root
    return BlockInfo(
        name,
        row.id,
        row.title,
        row.created,
        row.equals,
        row.n_tokens,
        row.n_tail,
        row.size,
        row.payload_bytes,
        row.part_index,
        row.part_count,
        row.recipe_id,
        ref.root if ref else row.root,
        pinned,
        last_used,
        "another block under this id" if another else row.problem,
    )


def recipe_id(recipe: Mapping[str, object]) -> str:
    """SHA-256 of the canonical recipe: equal for blocks that one engine can use."""
    return hashlib.sha256(canonical_json(dict(recipe))).hexdigest()


def _read_block_row(path: Path, status: os.stat_result) -> BlockRow:
    """The row of the block at `path`; one with a `problem` where its header cannot be read."""
    try:
        with BlockFile.open(path) as block:
            header, layout = block.header, block.layout
            return BlockRow(
                path.stem,
                block.identity.stamp,
                block.identity.size,
                block.root,
                header.title,
                header.created,
                header.equals,
                layout.n_tokens,
                layout.n_tail,
                layout.payload_bytes,
                header.part.index,
                header.part.count,
                recipe_id(header.recipe),
                None,
            )
    except (FormatError, StoreDamaged, StoreMissing, UnsupportedVersion) as error:
        stamp = identity_of(status).stamp
        return BlockRow(
            path.stem, stamp, status.st_size, "", "", "", "", 0, 0, 0, 0, 1, "", error.message
        )


def _written(
    folder: Path, header: BlockHeader, payload: ReadableBuffer | Sequence[ReadableBuffer]
) -> tuple[Path, str, str]:
    """A new block file in `folder`, its id and its root."""
    draft = folder / "draft"
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
    try:
        block_id = blockfile.write(fd, header, payload)
    finally:
        os.close(fd)
    with BlockFile.open(draft) as written:
        return draft, block_id, written.root


def _copy_hashed(stream: IO[bytes], target: Path, size: int, block_id: str, where: Path) -> None:
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
