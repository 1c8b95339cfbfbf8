"""The bank: verified solutions, each with the KV blocks that hold it for the models that lack it.

A bank is a folder:

    bank.json        what the folder is, and its version
    entries/ID.json  one solution: problem, program, answer, and where all of it comes from; sealed
                     with its own SHA-256
    library/         a `taliesin` library with one block per solution and model, named ID@MODEL (12
                     digits of the model's hash)
    quarantine/      ID@N.json: entries that were set aside, as they were, and ID@N.txt: why

The block is written before the entry that names it, so whatever dies in between leaves a block
without an entry, never an entry without a block. Deliberately does not know: what may enter
(`galahad.bank.entry`), how a block is read, and which one suits a question.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from galahad import sandbox
from galahad.bank.entry import ID, MERGED, Entry, Need, Verification
from galahad.errors import BankError
from galahad.measure.canonical import sha256_of
from taliesin.errors import StoreDamaged, StoreFull
from taliesin.host import clock, durable, records
from taliesin.host.records import Record

if TYPE_CHECKING:
    from galahad.answerer.answerer import BlockAnswerer, SavedBlock
    from taliesin.ask.router import Router
    from taliesin.store.library import Library

VERSION = 1
_MARKER = "bank.json"
_ENTRIES = "entries"
_LIBRARY = "library"
_QUARANTINE = "quarantine"
REBUILD_LOCK = "rebuild.lock"
_MAX_ENTRY_BYTES = 4 << 20


class BankMarker(Record):
    """What `bank.json` says: that the folder is a bank, and of which version."""

    SCHEMA = "galahad.bank/1"
    format: Literal["galahad-bank"] = "galahad-bank"
    version: int = VERSION


class Bank:
    """A bank folder. Writers take turns through the library's lock."""

    def __init__(self, path: Path, create: bool = False) -> None:
        """Open the bank at `path`; with `create`, make it if the folder is empty or missing.

        Raises:
            BankError: no bank there, or other files. StoreFull: it cannot be made.
        """
        from taliesin.store.library import Library

        self.path = path
        marker = path / _MARKER
        try:
            there = marker.is_file()
        except OSError as error:
            raise BankError("no bank there", got=error.strerror, where=path) from error
        if not there:
            if not create:
                raise BankError(
                    "no bank there",
                    expected=f"a folder with {_MARKER}",
                    where=path,
                    hint="bank add makes one",
                )
            _make(path)
        _require_version(marker)
        if create:  # also one whose folder was lost, as an empty one is on its way through git
            _make_folder(path / _ENTRIES)
        self.library: Library = Library(path / _LIBRARY)

    def close(self) -> None:
        self.library.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- looking -----------------------------------------------------------------------------------

    def entries(self) -> tuple[Entry, ...]:
        """All entries in order of id.

        Raises:
            BankError: one of them is damaged.
        """
        return tuple(self.get(id_) for id_ in self.ids())

    def ids(self) -> tuple[str, ...]:
        """The ids of all files that can be an entry; `check` names the others."""
        return tuple(
            sorted(
                path.stem for path in (self.path / _ENTRIES).glob("*.json") if _is_entry_file(path)
            )
        )

    def get(self, id_: str) -> Entry:
        """The entry of that id.

        Raises:
            BankError: no such entry, or a damaged one.
        """
        path = self._entry_path(id_)
        if not path.is_file():
            raise BankError("no such entry", got=id_, where=self.path, hint="galahad bank list")
        stored = _read(path)
        fields = {name: value for name, value in stored.items() if name not in ("schema", "seal")}
        if stored.get("schema") != Entry.SCHEMA or stored.get("seal") != _seal(fields):
            raise BankError(
                "the entry is not as it was written",
                expected=f"{Entry.SCHEMA} under its own hash",
                where=path,
                hint="galahad bank rm, then add it again",
            )
        return records.convert(stored, Entry, what="the entry", where=path, error=BankError)

    def find(self, id_: str) -> Entry | None:
        """The entry; None if it is missing or damaged."""
        try:
            return self.get(id_)
        except BankError:
            return None

    def foreign_files(self) -> tuple[str, ...]:
        """The names of files among the entries that none can have, as ASCII."""
        paths = sorted((self.path / _ENTRIES).glob("*"))
        strange = [p.name for p in paths if not p.name.startswith(".") and not _is_entry_file(p)]
        return tuple(ascii(name)[1:-1] for name in strange)

    def set_aside_ids(self) -> tuple[str, ...]:
        """Ids of the entries in quarantine; one of them may have been banked again."""
        return tuple(
            sorted(
                {
                    path.stem.rpartition("@")[0]
                    for path in (self.path / _QUARANTINE).glob("*@*.json")
                }
            )
        )

    def router(self) -> Router:
        """Routes a problem's text to the entry of the same or a like problem, or to none: by
        problem texts only.
        """
        from taliesin.ask.router import Document, Router

        return Router(
            [Document(entry.id, entry.id, entry.id, entry.problem) for entry in self.entries()]
        )

    # -- changing ----------------------------------------------------------------------------------

    def add(
        self,
        entry: Entry,
        answerer: BlockAnswerer | None,
        need: Need,
        *,
        replace_existing: bool = False,
    ) -> Entry:
        """Store the entry with the answerer's block; the same solution for another model only adds
        its block.

        Raises:
            BankError: another solution under that id, or the text under another id, and not
            `replace_existing`.
        """
        with self.library.locked():
            entry = self._beside_the_others(entry, replace_existing)
            if answerer is not None:
                saved = self._save(entry, answerer)
                entry = msgspec.structs.replace(
                    entry,
                    blocks={**entry.blocks, saved.model_sha256: saved},
                    need={**entry.need, saved.model_sha256: need},
                )
            return self._put(entry)

    def _beside_the_others(self, entry: Entry, replace_existing: bool) -> Entry:
        """The entry with what the bank has of it already. Raises as `add`."""
        for there in self.entries():
            if there.id != entry.id:
                if there.sha256 == entry.sha256:
                    raise BankError(f"the bank holds this problem as {there.id}", got=entry.id)
                continue
            solution = (entry.sha256, entry.program_sha256)
            if (there.sha256, there.program_sha256) == solution:
                entry = msgspec.structs.replace(
                    entry, blocks=there.blocks, need=there.need, created=there.created
                )
            elif not replace_existing:
                raise BankError(
                    f"there is another solution under {entry.id}",
                    expected=f"program {there.program_sha256[:12]}",
                    got=entry.program_sha256[:12],
                    hint="--replace takes its place",
                )
        return entry

    def update(self, entry: Entry, **changes: Any) -> Entry | None:
        """Store the entry with other values in these fields; None if it was changed or removed
        since it was read.
        """
        with self.library.locked():
            if self.find(entry.id) != entry:
                return None
            return self._put(msgspec.structs.replace(entry, **changes))

    def attest(self, entry: Entry, verdict: sandbox.Verdict) -> Entry | None:
        """Store that the entry's program was verified now; None as `update`."""
        return self.update(entry, verification=Verification.of(verdict))

    def set_aside(self, id_: str, entry: Entry | None, why: str) -> Path | None:
        """Move the file of an entry to `quarantine/` with the reason beside it; where it is now,
        None as `update`.

        entry: what was read, None if it is damaged. Its blocks stay: moved back, the file is an
        entry again.
        """
        path, folder = self._entry_path(id_), self.path / _QUARANTINE
        with self.library.locked():
            if not path.is_file() or self.find(id_) != entry:
                return None
            try:
                folder.mkdir(mode=0o700, exist_ok=True)
                places = (folder / f"{id_}@{n}.json" for n in itertools.count(1))
                target = next(place for place in places if not place.exists())
                durable.write_output(target.with_suffix(".txt"), f"{clock.now()} {why}\n")
                path.rename(target)
                durable.sync_folder(folder)
                durable.sync_folder(path.parent)
            except OSError as error:
                raise StoreFull(
                    "the entry cannot be set aside", got=error.strerror, where=path
                ) from error
        return target

    def remove(self, id_: str) -> int:
        """Remove an entry, also one that was set aside, with its blocks; the number of blocks."""
        with self.library.locked():
            paths = [self._entry_path(id_), *(self.path / _QUARANTINE).glob(f"{id_}@*")]
            if not any(path.is_file() for path in paths):
                raise BankError("no such entry", got=id_, where=self.path, hint="galahad bank list")
            names = [
                line.name
                for line in self.library.list()
                if line.name and line.name.partition("@")[0] == id_
            ]
            for path in paths:
                path.unlink(missing_ok=True)
            for name in names:
                self.library.remove(name)
        return len(names)

    def save_merged(self, answerer: BlockAnswerer) -> SavedBlock:
        """One block with all entries of that model in order of id, for the ablation; made anew each
        time.
        """
        texts = [entry.document() for entry in self.entries()]
        if not texts:
            raise BankError("the bank is empty", where=self.path)
        return answerer.save(
            self.library,
            f"{MERGED}@{answerer.model_sha256[:12]}",
            "\n\n---\n\n".join(texts),
            MERGED,
        )

    def _save(self, entry: Entry, answerer: BlockAnswerer) -> SavedBlock:
        return answerer.save(
            self.library, f"{entry.id}@{answerer.model_sha256[:12]}", entry.document(), entry.id
        )

    def _put(self, entry: Entry) -> Entry:
        """The entry under its seal, stored."""
        fields = entry.fields()
        seal = sha256_of(fields)
        _write(self._entry_path(entry.id), {"schema": Entry.SCHEMA, **fields, "seal": seal})
        return msgspec.structs.replace(entry, seal=seal)

    def _entry_path(self, id_: str) -> Path:
        if not ID.fullmatch(id_):
            raise BankError("no such entry", got=ascii(id_[:80]), where=self.path)
        return self.path / _ENTRIES / f"{id_}.json"


# -- files -----------------------------------------------------------------------------------------


def _make(path: Path) -> None:
    """A new bank in a folder that is empty, missing, or what is left of one."""
    left = (_ENTRIES, _LIBRARY)
    if path.exists() and (not path.is_dir() or any(p.name not in left for p in path.iterdir())):
        raise BankError(
            "the folder is no bank and holds other things", where=path, hint="name a new folder"
        )
    try:
        (path / _ENTRIES).mkdir(parents=True, exist_ok=True, mode=0o700)
        path.chmod(0o700)
    except OSError as error:
        raise StoreFull("the bank cannot be made", got=error.strerror, where=path) from error
    _write(path / _MARKER, records.plain(BankMarker()))


def _require_version(marker: Path) -> None:
    found = _read(marker)
    if found.get("version") != VERSION:
        raise BankError(
            "not a bank of this version",
            expected=VERSION,
            got=found.get("version"),
            where=marker,
        )
    records.convert(found, BankMarker, what="the bank's file", where=marker, error=BankError)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreFull(
            "a folder of the bank cannot be made", got=error.strerror, where=path
        ) from error


def _is_entry_file(path: Path) -> bool:
    return path.suffix == ".json" and ID.fullmatch(path.stem) is not None and path.is_file()


def _seal(fields: dict[str, Any]) -> str | None:
    """The seal of an entry's fields; None for what no writer can have sealed (an infinity)."""
    try:
        return sha256_of(fields)
    except (ValueError, RecursionError):
        return None


def _read(path: Path) -> dict[str, Any]:
    what = "a file of the bank"
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_ENTRY_BYTES + 1)
    except OSError as error:
        raise StoreDamaged(f"{what} cannot be read", got=error.strerror, where=path) from error
    if len(data) > _MAX_ENTRY_BYTES:
        raise BankError(f"{what} is damaged", expected="at most 4 MiB", where=path)
    record = records.parse(data, what=what, where=path, error=BankError)
    if not isinstance(record, dict):
        raise BankError(f"{what} is damaged", expected="a JSON object", where=path)
    return record


def _write(path: Path, record: dict[str, Any]) -> None:
    """Put the record at `path` whole or not at all, on the disk when this returns."""
    text = json.dumps(record, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    durable.write_output(path, text)
