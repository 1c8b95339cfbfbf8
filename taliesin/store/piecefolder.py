"""`PieceFolder`: the piece files of a prefix cache as they lie on the disk (docs/format.md, "Piece
file"): what is there, the trees that they make, pins, eviction, checks, and moving them.

A *chain* is a stored beginning of a prompt: a piece that nothing follows, its leaf, with everything
before it. Chains share pieces.

Promises: what is pinned, and all before it, is never evicted; no piece goes before the ones that
follow it; a file that is taken in was read whole first. Several processes may share a folder, and a
file that goes meanwhile is no error.
Deliberately does not know: what a piece holds, who writes new ones (`pieces`), text.
"""

from __future__ import annotations

import contextlib
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from taliesin.errors import (
    FormatError,
    StoreDamaged,
    StoreFull,
    StoreMissing,
    ToolkitError,
    UnsupportedVersion,
    UsageError,
)
from taliesin.host import durable
from taliesin.host.canonical import is_digest
from taliesin.host.locks import Lock
from taliesin.store import piecefile
from taliesin.store.piecefile import PieceHeader

SUFFIX = ".piece"
DRAFTS = "drafts"
_PINS = "pins"
_MEMBER = re.compile(r"([0-9a-f]{64})\.piece")


class Held(NamedTuple):
    """A piece file as a listing shows it. used: seconds since the epoch."""

    name: str
    n_bytes: int
    used: float


class Chain(NamedTuple):
    """A stored beginning. names: its pieces, first to last, the leaf's last; shared: how many of
    them other chains have too.
    """

    names: tuple[str, ...]
    recipe: str
    n_tokens: int
    n_bytes: int
    used: float
    shared: int
    pinned: bool

    @property
    def leaf(self) -> str:
        return self.names[-1]


class Trees(NamedTuple):
    """All pieces whose headers can be read, by name. unusable: files that cannot be read, and why;
    orphans: pieces with an ancestor missing.
    """

    headers: Mapping[str, PieceHeader]
    files: Mapping[str, Held]
    unusable: Mapping[str, str]
    orphans: frozenset[str]

    def names(self, leaf: str) -> tuple[str, ...]:
        """The pieces up to `leaf`, first to last."""
        found = [leaf]
        while parent := self.headers[found[-1]].parent:
            found.append(parent)
        return tuple(reversed(found))

    def ids(self, leaf: str) -> npt.NDArray[np.int32]:
        """The tokens of the chain that ends with `leaf`."""
        return np.concatenate(
            [np.asarray(self.headers[name].ids, np.int32) for name in self.names(leaf)]
        )

    def leaves(self) -> list[str]:
        parents = {header.parent for header in self.headers.values()}
        return [name for name in self.headers if name not in parents and name not in self.orphans]


class Checked(NamedTuple):
    """What `check` found. damaged: names of files and what is wrong with them."""

    n_pieces: int
    n_bytes: int
    damaged: dict[str, str]
    orphans: list[str]


class PieceFolder:
    """See the module. Nothing is made until something is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = Lock(folder / "lock", seconds=10, busy="another process evicts pieces")

    def path(self, name: str) -> Path:
        return self.folder / name[:2] / (name + SUFFIX)

    def held(self) -> list[Held]:
        """All pieces in the folder, least recently used first."""
        found = []
        for path in self.folder.glob(f"[0-9a-f][0-9a-f]/*{SUFFIX}"):
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append(Held(path.stem, status.st_size, status.st_mtime))
        return sorted(found, key=lambda held: held.used)

    def trees(self, most: int | None = None) -> Trees:
        """The headers of all pieces; with `most` of those that were used last."""
        listed = self.held()
        headers, files, unusable = {}, {}, {}
        for held in listed[-most:] if most is not None else listed:
            try:
                headers[held.name] = piecefile.read_header(self.path(held.name), held.name)
                files[held.name] = held
            except StoreMissing:
                continue  # evicted meanwhile
            except (ToolkitError, OSError) as error:
                unusable[held.name] = str(error).partition("\n")[0]
        rooted: dict[str, bool] = {}
        for name in headers:
            way = []
            at = name
            while at and at in headers and at not in rooted:
                way.append(at)
                at = headers[at].parent
            whole = not at or rooted.get(at, False)
            rooted.update(dict.fromkeys(way, whole))
        orphans = frozenset(name for name, whole in rooted.items() if not whole)
        return Trees(headers, files, unusable, orphans)

    def chains(self, trees: Trees | None = None) -> list[Chain]:
        """Every chain, the one that was used last first."""
        trees = trees or self.trees()
        ways = [trees.names(leaf) for leaf in trees.leaves()]
        times = Counter(name for way in ways for name in way)
        pinned = self.pins()
        found = [
            Chain(
                way,
                trees.headers[way[0]].recipe,
                sum(len(trees.headers[name].ids) for name in way),
                sum(trees.files[name].n_bytes for name in way),
                trees.files[way[-1]].used,
                sum(times[name] > 1 for name in way),
                any(name in pinned for name in way),
            )
            for way in ways
        ]
        return sorted(found, key=lambda chain: chain.used, reverse=True)

    def chain(self, prefix: str) -> Chain:
        """The chain whose leaf's name begins with `prefix`.

        Raises:
            StoreMissing: none. UsageError: several, or too short a prefix.
        """
        if len(prefix) < 8 or not set(prefix) <= set("0123456789abcdef"):
            raise UsageError("not a chain's name", expected="8 or more digits of it", got=prefix)
        found = [chain for chain in self.chains() if chain.leaf.startswith(prefix)]
        if not found:
            raise StoreMissing(
                "no such chain in the prefix cache",
                got=prefix,
                where=self.folder,
                hint="taliesin cache list",
            )
        if len(found) > 1:
            raise UsageError("several chains begin so", got=prefix, hint="more digits")
        return found[0]

    # -- pins --------------------------------------------------------------------------------------

    def pins(self) -> frozenset[str]:
        """Names of pinned pieces; all before them stay, too."""
        with contextlib.suppress(OSError):
            return frozenset(
                path.name for path in (self.folder / _PINS).iterdir() if is_digest(path.name)
            )
        return frozenset()

    def pin(self, name: str, pinned: bool) -> None:
        """Raises: StoreFull: the folder cannot be written."""
        mark = self.folder / _PINS / name
        try:
            mark.parent.mkdir(exist_ok=True, mode=0o700)
            if pinned:
                mark.touch(0o600)
                durable.sync_folder(mark.parent)
            else:
                mark.unlink(missing_ok=True)
        except OSError as error:
            raise StoreFull("the pin cannot be written", got=error.strerror, where=mark) from error

    def _kept(self) -> set[str]:
        """The pinned pieces and all before them."""
        kept: set[str] = set()
        for name in self.pins():
            at = name
            while at and at not in kept:
                try:
                    header = piecefile.read_header(self.path(at), at)
                except (ToolkitError, OSError):
                    break
                kept.add(at)
                at = header.parent
        return kept

    # -- removing ----------------------------------------------------------------------------------

    def evict(self, most_bytes: float, *, dry_run: bool = False) -> tuple[int, int, int]:
        """Remove what was not used for longest until at most `most_bytes` are left; pieces removed,
        their bytes, and the bytes left.

        Raises:
            StoreLocked: another process does so. StoreFull: the folder cannot be written.
        """
        with contextlib.ExitStack() as stack:
            if not dry_run:
                stack.enter_context(self._lock.held())
            listed = self.held()
            total = sum(held.n_bytes for held in listed)
            kept = self._kept() if total > most_bytes else set()
            removed = removed_bytes = 0
            for held in listed:
                if total <= most_bytes:
                    break
                if held.name in kept:
                    continue
                if not dry_run:
                    self._unlink(held.name)
                total -= held.n_bytes
                removed_bytes += held.n_bytes
                removed += 1
        return removed, removed_bytes, total

    def remove(self, names: Iterable[str]) -> int:
        """Remove pieces, whatever follows them; how many."""
        removed = 0
        with self._lock.held():
            for name in names:
                removed += self._unlink(name)
        return removed

    def _unlink(self, name: str) -> bool:
        try:
            self.path(name).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreFull(
                "a piece cannot be removed", got=error.strerror, where=self.path(name)
            ) from error
        return True

    # -- checking and moving -----------------------------------------------------------------------

    def check(self) -> Checked:
        """Read every piece whole."""
        damaged = {}
        listed = self.held()
        for held in listed:
            try:
                piecefile.read(self.path(held.name), held.name)
            except (StoreMissing, UnsupportedVersion):
                continue  # evicted meanwhile, or another version's to judge
            except (ToolkitError, OSError) as error:
                damaged[held.name] = str(error).partition("\n")[0]
        trees = self.trees()
        orphans = sorted(trees.orphans - damaged.keys())
        return Checked(len(listed), sum(held.n_bytes for held in listed), damaged, orphans)

    def export(self, chains: Sequence[Chain], out: Path) -> int:
        """Put chains into a tar file; how many pieces.

        Raises:
            StoreFull: no space, or not permitted. StoreDamaged, FormatError: a piece is not whole.
        """
        names = list(dict.fromkeys(name for chain in chains for name in chain.names))
        try:
            with (
                durable.replacing(out) as file,
                tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                for name in names:
                    piecefile.read(self.path(name), name)
                    with self.path(name).open("rb") as piece:
                        member = tarfile.TarInfo(name + SUFFIX)
                        member.size, member.mode = os.fstat(piece.fileno()).st_size, 0o600
                        tar.addfile(member, piece)
        except OSError as error:
            raise StoreFull("the file cannot be written", got=error.strerror, where=out) from error
        return len(names)

    def take_in(self, bundle: Path) -> tuple[int, int]:
        """Take the pieces of a file that `export` wrote; how many are new, and how many were here.

        Raises:
            StoreMissing: no such file. FormatError, StoreDamaged: not such a file, or not whole;
            pieces before the damaged one stay. StoreFull: no space.
        """
        new = here = 0
        drafts = self.folder / DRAFTS
        try:
            drafts.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name, content in _members(bundle):
                if self.path(name).exists():
                    here += 1
                    continue
                draft = drafts / os.urandom(8).hex()
                try:
                    draft.write_bytes(content)
                    header = piecefile.read(draft, name).header
                    if header.parent and not self.path(header.parent).exists():
                        raise FormatError(
                            "a piece of the file follows one that is not there",
                            got=name,
                            where=bundle,
                        )
                    self.path(name).parent.mkdir(exist_ok=True, mode=0o700)
                    with durable.replacing(
                        self.path(name), draft=drafts / os.urandom(8).hex()
                    ) as f:
                        f.write(content)
                finally:
                    draft.unlink(missing_ok=True)
                new += 1
        except OSError as error:
            raise StoreFull(
                "the piece cannot be written", got=error.strerror, where=self.folder
            ) from error
        return new, here


def _members(bundle: Path) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each piece in a tar file."""
    try:
        opened = tarfile.open(bundle, "r:")  # noqa: SIM115
    except FileNotFoundError as error:
        raise StoreMissing("no such file", where=bundle) from error
    except (tarfile.TarError, OSError) as error:
        raise FormatError("not a file of pieces", got=error, where=bundle) from error
    with opened as tar:
        try:
            for member in tar:
                match = _MEMBER.fullmatch(member.name)
                if match is None or not member.isreg():
                    raise FormatError(
                        "not a file of pieces",
                        expected="members named <name>.piece",
                        got=member.name[:80],
                        where=bundle,
                    )
                file = tar.extractfile(member)
                assert file is not None
                yield match[1], file.read()
        except tarfile.TarError as error:
            raise StoreDamaged(
                "the file of pieces is cut short", got=error, where=bundle
            ) from error
