"""A walk over every file of a library: what is damaged, what does not belong there, and with
`repair` the remedy.

Promises to change nothing without `repair`, and with it to destroy no data: damage is moved to
`quarantine/`.
Deliberately does not know: whether a sound block suits an engine (`verify`).
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from taliesin.errors import (
    FormatError,
    StoreDamaged,
    StoreFull,
    StoreMissing,
    UnsupportedVersion,
)
from taliesin.host.durable import sync_folder
from taliesin.store.blockfile import BlockFile
from taliesin.store.folder import OWN_NAMES, id_of_block_file, storage_errors
from taliesin.store.library import Library

if TYPE_CHECKING:
    from taliesin.store.refs import Ref

FindingKind = Literal[
    "damaged-block",
    "damaged-ref",
    "dangling-ref",
    "symlink",
    "newer-version",
    "unnamed-block",
    "foreign-file",
    "leftover",
    "permissions",
]
# These make a library unsound; the other kinds are remarks.
DAMAGE: frozenset[FindingKind] = frozenset(
    ("damaged-block", "damaged-ref", "dangling-ref", "symlink")
)


class Finding(NamedTuple):
    """One thing that was seen. `path` is relative to the library; `action`: what `repair` did about
    it.
    """

    kind: FindingKind
    path: str
    message: str
    action: str | None = None

    @property
    def is_damage(self) -> bool:
        return self.kind in DAMAGE


class CheckReport(NamedTuple):
    """What was found. `complete` is false when the time limit came before the last block; another
    goes on there.
    """

    findings: list[Finding]
    n_blocks: int
    n_sound: int
    n_refs: int
    complete: bool

    @property
    def sound(self) -> bool:
        """Whether no damage was found, repaired or not."""
        return not any(finding.is_damage for finding in self.findings)


def check(
    library: Library,
    repair: bool = False,
    deep: bool = True,
    max_seconds: float | None = None,
    advance: Callable[[int], None] = lambda _n_bytes: None,
) -> CheckReport:
    """Look at every file; with `deep` read all of them, those first whose last verification is
    longest ago.

    repair: move damage to `quarantine/`, remove what killed writers left, put file modes right.
    max_seconds: stop
    reading after that. advance: told the bytes of each block that was read, for progress.

    Raises:
        StoreLocked: a writer kept the lock. StoreFull: `repair` in a library that cannot be
        written.
    """
    with storage_errors(library.path):
        return _check(library, repair, deep, max_seconds, advance)


def _check(
    library: Library,
    repair: bool,
    deep: bool,
    max_seconds: float | None,
    advance: Callable[[int], None],
) -> CheckReport:
    deadline = None if max_seconds is None else time.monotonic() + max_seconds
    walk = _Walk(library, repair)
    with ExitStack() as stack:
        try:
            stack.enter_context(library.locked())
        except StoreFull:
            # A library that cannot be written, or locked, can be looked at all the same.
            if repair:
                raise
        walk.look_around()

    verified_at = library.index.verified()
    n_sound = 0
    complete = True
    for block_id in sorted(walk.blocks, key=lambda i: (verified_at.get(i, ("", 0.0))[1], i)):
        if deadline is not None and time.monotonic() > deadline:
            complete = False
            break
        n_sound += walk.look_at_block(block_id, deep, advance)
    for ref in walk.refs:
        walk.look_at_ref(ref)
    walk.look_for_unnamed()
    return CheckReport(walk.findings, len(walk.blocks), n_sound, len(walk.refs), complete)


class _Walk:
    """One check under way: the files seen at its start, and what was found so far."""

    def __init__(self, library: Library, repair: bool) -> None:
        self.library = library
        self.repair = repair
        self.findings: list[Finding] = []
        self.blocks: dict[str, Path] = {}  # by id
        self.refs: list[Ref] = []
        self._roots: dict[str, str] = {}  # of the blocks that could be opened, by id

    def look_around(self) -> None:
        """Everything but the content of blocks. Under the lock, so that no writer is half way."""
        root = self.library.path
        self._look_at_mode(root, root.stat().st_mode, 0o700)
        for entry in _entries(root):
            if entry.name not in OWN_NAMES:
                self._look_at_stranger(entry)
        for entry in _entries(root / "refs"):
            if not self._look_at_stranger(entry, is_ours=entry.name.endswith(".json")):
                continue
            try:
                self.refs.append(self.library.refs.read(os.fsencode(entry.name)))
            except StoreDamaged as error:
                self._report("damaged-ref", Path(entry.path), error.message, self._quarantine)
        for folder in _entries(root / "blocks"):
            is_ours = len(folder.name) == 2 and folder.is_dir(follow_symlinks=False)
            if not self._look_at_stranger(folder, is_ours):
                continue
            for entry in _entries(Path(folder.path)):
                block_id = id_of_block_file(entry.name, folder.name)
                if self._look_at_stranger(entry, block_id is not None) and block_id is not None:
                    self.blocks[block_id] = Path(entry.path)
                    self._look_at_mode(
                        Path(entry.path), entry.stat(follow_symlinks=False).st_mode, 0o400
                    )
        for path in self.library.leftovers():
            self._report("leftover", path, "a writer was killed here", self._remove)

    def look_at_block(self, block_id: str, deep: bool, advance: Callable[[int], None]) -> bool:
        """Whether the block is sound; with `deep` its content too."""
        path = self.blocks[block_id]
        try:
            with BlockFile.open(path) as block:
                self._roots[block_id] = block.root
                if deep:
                    block.verify()
                    digest = block.file_digest()
                    if digest != block_id:
                        raise StoreDamaged(
                            f"its SHA-256 is {digest}, another block's or a damaged one's"
                        )
                    self.library.record_verified(block)
                    advance(block.identity.size)
                return True
        except StoreMissing:
            pass  # removed since the walk began
        except UnsupportedVersion as error:
            self._report("newer-version", path, error.message)
        except (FormatError, StoreDamaged) as error:
            self._report("damaged-block", path, error.message, self._quarantine)
        return False

    def look_at_ref(self, ref: Ref) -> None:
        path = self.library.path / "refs" / os.fsdecode(ref.file)
        try:
            if self.library.refs.read(ref.file) != ref:
                return  # a writer gave the name to another block since the walk began
        except (StoreMissing, StoreDamaged):
            return
        if ref.block_id not in self.blocks or not os.path.lexists(self.blocks[ref.block_id]):
            message = f"the block {ref.block_id[:12]} of the name {ref.name!r} is not there"
            self._report("dangling-ref", path, message, self._quarantine)
        elif self._roots.get(ref.block_id, ref.root) != ref.root:
            message = (
                f"the name {ref.name!r} was given to another block than the one in "
                f"{ref.block_id[:12]}"
            )
            self._report("damaged-ref", path, message, self._quarantine)

    def look_for_unnamed(self) -> None:
        named = {ref.block_id for ref in self.refs}
        for block_id in sorted(self.blocks.keys() - named):
            if self.blocks[block_id].exists():
                message = f"no name leads to it; `taliesin rename {block_id[:12]} NAME` gives one"
                self._report("unnamed-block", self.blocks[block_id], message)

    def _look_at_stranger(self, entry: os.DirEntry[str], is_ours: bool = False) -> bool:
        """Report an entry that does not belong there. True if it does."""
        if entry.is_symlink():
            self._report(
                "symlink", Path(entry.path), "symbolic links are not followed", self._quarantine
            )
            return False
        if not is_ours:
            self._report("foreign-file", Path(entry.path), "not a file of this library; left alone")
        return is_ours

    def _look_at_mode(self, path: Path, mode: int, allowed: int) -> None:
        if stat.S_IMODE(mode) & ~allowed:

            def narrow(path: Path) -> str:
                path.chmod(allowed)
                return f"mode set to {allowed:o}"

            self._report(
                "permissions", path, f"mode {stat.S_IMODE(mode):o}, wider than {allowed:o}", narrow
            )

    def _report(
        self,
        kind: FindingKind,
        path: Path,
        message: str,
        remedy: Callable[[Path], str] | None = None,
    ) -> None:
        action = remedy(path) if remedy and self.repair else None
        self.findings.append(
            Finding(kind, str(path.relative_to(self.library.path)), message, action)
        )

    def _quarantine(self, path: Path) -> str:
        target = self.library.path / "quarantine" / f"{path.name[:150]}.{os.urandom(4).hex()}"
        with self.library.locked():
            os.rename(path, target)
            sync_folder(path.parent)
            sync_folder(target.parent)
        return f"moved to quarantine/{target.name}"

    def _remove(self, path: Path) -> str:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        return "removed"


def _entries(path: Path) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return sorted(entries, key=lambda entry: entry.name)
