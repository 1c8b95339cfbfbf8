"""The bank: verified solutions, each with the KV blocks that hold it for the models that lack it.

A bank is a folder:

    bank.json        what the folder is, and its version
    entries/ID.json  one solution: problem, program, answer, and where all of it comes from; sealed
                     with its own SHA-256
    library/         a `taliesin` library with one block per solution and model, named ID@MODEL (12
                     digits of the model's hash)
    quarantine/      ID@N.json: entries that were set aside, as they were, and ID@N.txt: why

Two rules decide what enters. A program counts only when the sandbox has run it and it printed the
answer (`Refused` otherwise). And
a problem counts only when the model was measured not to solve it, or somebody insists: a solution
that the model does not need has been measured to help nothing and to cost accuracy.

The block is written before the entry that names it, so whatever dies in between leaves a block
without an entry, never an
entry without a block. Deliberately does not know: how a block is read, and which one suits a
question.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from galahad import sandbox
from galahad.errors import BankError
from galahad.measure.canonical import sha256_of
from galahad.problems.problem import GOLDS, Problem, text_sha256
from galahad.responses import program as programs
from taliesin.errors import StoreDamaged, StoreFull, ToolkitError
from taliesin.host import clock, durable, records

if TYPE_CHECKING:
    from galahad.answerer.answerer import BlockAnswerer, SavedBlock
    from taliesin.ask.router import Router
    from taliesin.store.library import Library

VERSION = 1
SCHEMA = "galahad.entry/1"
_MARKER = "bank.json"
_ENTRIES = "entries"
_LIBRARY = "library"
_QUARANTINE = "quarantine"
REBUILD_LOCK = "rebuild.lock"
# the block of all entries is called so; an entry of that id would lose its own to it
_MERGED = "merged"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MAX_ENTRY_BYTES = 4 << 20

Verify = Callable[[str, int], sandbox.Verdict]
Solved = Literal["solved", "uncertain", "failed", "not-measured"]


class Need(NamedTuple):
    """Whether the model needs the solution. `solved` is what was measured, `by` how (a run's chain,
    or a person's word).
    """

    solved: Solved
    by: str


@dataclass(frozen=True)
class Entry:
    """A verified solution.

    program: prints `answer`, verified in the sandbox. parametric: no number of the problem stands
    inside its logic; `findings`
    says which do. verification: the verdict, the level and mechanisms of the sandbox, its time.
    provenance: where the program is
    from. need: by model hash, what the model was measured to do without it. blocks: by model hash,
    its block.
    """

    id: str
    problem: str
    sha256: str
    answer: int
    program: str
    program_sha256: str
    parametric: bool
    findings: tuple[str, ...]
    verification: Mapping[str, Any]
    provenance: Mapping[str, Any]
    need: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    blocks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    created: str = ""

    def document(self) -> str:
        """What the block holds."""
        return (
            f"Problem:\n{self.problem}\n\n"
            f"Verified Python program:\n```python\n{self.program.strip()}\n```\n\n"
            f"Verified answer: {self.answer}"
        )

    def block(self, model_sha256: str) -> str:
        """The name of the block of that model.

        Raises:
            BankError: the model has none.
        """
        found = self.blocks.get(model_sha256)
        if found is None:
            raise BankError(
                f"{self.id} has no block of this model",
                expected=f"model {model_sha256[:12]}",
                got=", ".join(str(b["model"]) for b in self.blocks.values()) or "none",
                hint="galahad bank add with --model computes it",
            )
        return str(found["name"])


def verified(
    problem: Problem,
    program: str,
    provenance: Mapping[str, Any],
    verify: Verify = sandbox.verify,
) -> Entry:
    """The entry of a program that the sandbox ran now and that printed the problem's answer.

    Raises:
        BankError: it did not; the message says what it did instead. UsageError: not Python.
        SandboxUnavailable: as `verify`.
    """
    if not _ID.fullmatch(problem.id) or problem.id == _MERGED:
        raise BankError(
            "this id cannot name an entry",
            expected=f"at most 100 letters, digits, . _ -, and not {_MERGED}",
            got=ascii(problem.id[:80]),
        )
    if problem.answer not in GOLDS:
        raise BankError(
            "the answer is out of range", expected="0..999", got=problem.answer, where=problem.id
        )
    check = programs.check(program, problem.problem)
    verdict = verify(program, problem.answer)
    if verdict.verdict != "verified":
        raise BankError(
            f"the program does not establish the answer of {problem.id}",
            expected=f"it prints {problem.answer} and ends cleanly",
            got=f"{verdict.verdict}, {verdict.cause}: {verdict.detail}",
        )
    return Entry(
        problem.id,
        problem.problem,
        problem.sha256,
        problem.answer,
        program,
        sha256_of(program),
        check.parametric,
        tuple(check.explain()),
        _verification(verdict),
        dict(provenance),
        created=clock.now(),
    )


def _verification(verdict: sandbox.Verdict) -> dict[str, Any]:
    execution = verdict.execution
    return {
        "verdict": verdict.verdict,
        "answer": verdict.answer,
        "level": execution.level,
        "mechanisms": list(execution.mechanisms),
        "wall_seconds": round(execution.wall_seconds, 3),
        "at": clock.now(),
    }


def require_need(entry_id: str, need: Need, *, force: bool) -> None:
    """The rule of `only needed`.

    Raises:
        BankError: the model solves the problem, or nobody measured whether it does, and nobody
        insists.
    """
    if force or need.solved in ("uncertain", "failed"):
        return
    if need.solved == "solved":
        raise BankError(
            f"the model already solves {entry_id}",
            expected="a problem that it fails or is uncertain about",
            got=f"solved, by {need.by}",
            hint="--force banks it all the same",
        )
    raise BankError(
        f"nobody measured whether the model solves {entry_id}",
        hint="--run RUN of `galahad solve` with this model, --measure, or --force",
    )


class Trouble(NamedTuple):
    """What `check` found wrong with an entry or a block (`what` names it)."""

    what: str
    kind: str
    detail: str


def contradictions(entry: Entry, id_: str) -> Iterator[Trouble]:
    """What an entry, read from the file of `id_`, says of itself that does not hold."""
    if entry.id != id_:
        yield Trouble(id_, "entry", f"the file holds the entry {entry.id}")
    if text_sha256(entry.problem) != entry.sha256:
        yield Trouble(id_, "problem", "the text has another hash")
    if sha256_of(entry.program) != entry.program_sha256:
        yield Trouble(id_, "program", "the program has another hash")


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
            if path.exists() and (
                not path.is_dir() or any(p.name not in (_ENTRIES, _LIBRARY) for p in path.iterdir())
            ):
                raise BankError(
                    "the folder is no bank and holds other things",
                    where=path,
                    hint="name a new folder",
                )
            try:
                (path / _ENTRIES).mkdir(parents=True, exist_ok=True, mode=0o700)
                path.chmod(0o700)
            except OSError as error:
                raise StoreFull(
                    "the bank cannot be made", got=error.strerror, where=path
                ) from error
            _write(marker, {"format": "galahad-bank", "version": VERSION})
        found = _read(marker)
        if found != {"format": "galahad-bank", "version": VERSION}:
            raise BankError(
                "not a bank of this version",
                expected=VERSION,
                got=found.get("version"),
                where=marker,
            )
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
        record = _read(path)
        fields = {name: value for name, value in record.items() if name not in ("schema", "seal")}
        if record.get("schema") != SCHEMA or record.get("seal") != _seal(fields):
            raise BankError(
                "the entry is not as it was written",
                expected=f"{SCHEMA} under its own hash",
                where=path,
                hint="galahad bank rm, then add it again",
            )
        if wrong := next(_malformed(fields), None):
            raise BankError(
                "the entry lacks a field, or has one too many or of another type",
                got=wrong,
                where=path,
            )
        return Entry(**{**fields, "findings": tuple(fields["findings"])})

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
            for id_ in self.ids():
                there = self.get(id_)
                if there.id == entry.id and (there.sha256, there.program_sha256) == (
                    entry.sha256,
                    entry.program_sha256,
                ):
                    entry = replace(
                        entry, blocks=there.blocks, need=there.need, created=there.created
                    )
                elif there.id == entry.id and not replace_existing:
                    raise BankError(
                        f"there is another solution under {entry.id}",
                        expected=f"program {there.program_sha256[:12]}",
                        got=entry.program_sha256[:12],
                        hint="--replace takes its place",
                    )
                elif there.id != entry.id and there.sha256 == entry.sha256:
                    raise BankError(f"the bank holds this problem as {there.id}", got=entry.id)
            if answerer is not None:
                saved = self._save(entry, answerer)
                entry = replace(
                    entry,
                    blocks={**entry.blocks, saved.model_sha256: records.plain(saved)},
                    need={**entry.need, saved.model_sha256: need._asdict()},
                )
            self._put(entry)
        return entry

    def rewritten(
        self, entry: Entry, program: str, provenance: Mapping[str, Any], verify: Verify
    ) -> Entry:
        """The entry with another program for the same answer, verified; its blocks hold the old one
        and are left out.
        """
        made = verified(
            Problem(entry.id, entry.problem, entry.answer, entry.sha256),
            program,
            provenance,
            verify,
        )
        return replace(made, need=entry.need, created=entry.created)

    def update(self, entry: Entry, **changes: Any) -> Entry | None:
        """Store the entry with other values in these fields; None if it was changed or removed
        since it was read.
        """
        with self.library.locked():
            if self._found(entry.id) != entry:
                return None
            changed = replace(entry, **changes)
            self._put(changed)
        return changed

    def attest(self, entry: Entry, verdict: sandbox.Verdict) -> Entry | None:
        """Store that the entry's program was verified now; None as `update`."""
        return self.update(entry, verification=_verification(verdict))

    def set_aside(self, id_: str, entry: Entry | None, why: str) -> Path | None:
        """Move the file of an entry to `quarantine/` with the reason beside it; where it is now,
        None as `update`.

        entry: what was read, None if it is damaged. Its blocks stay: moved back, the file is an
        entry again.
        """
        path, folder = self._entry_path(id_), self.path / _QUARANTINE
        with self.library.locked():
            if not path.is_file() or self._found(id_) != entry:
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
            f"{_MERGED}@{answerer.model_sha256[:12]}",
            "\n\n---\n\n".join(texts),
            _MERGED,
        )

    def _save(self, entry: Entry, answerer: BlockAnswerer) -> SavedBlock:
        return answerer.save(
            self.library, f"{entry.id}@{answerer.model_sha256[:12]}", entry.document(), entry.id
        )

    def _put(self, entry: Entry) -> None:
        fields = asdict(entry)
        _write(self._entry_path(entry.id), {"schema": SCHEMA, **fields, "seal": sha256_of(fields)})

    def _found(self, id_: str) -> Entry | None:
        """The entry; None if it is missing or damaged."""
        try:
            return self.get(id_)
        except BankError:
            return None

    def _entry_path(self, id_: str) -> Path:
        if not _ID.fullmatch(id_):
            raise BankError("no such entry", got=ascii(id_[:80]), where=self.path)
        return self.path / _ENTRIES / f"{id_}.json"

    # -- trust -------------------------------------------------------------------------------------

    def check(
        self, verify: Verify | None = sandbox.verify, answerer: BlockAnswerer | None = None
    ) -> list[Trouble]:
        """Everything that is not as it must be: entries, programs (run again by `verify`), blocks
        (hashed, and with `answerer` their certificates computed again where they are of its
        model)."""
        return [*self._check_entries(verify, answerer), *self._check_library()]

    def _check_entries(
        self, verify: Verify | None, answerer: BlockAnswerer | None
    ) -> Iterator[Trouble]:
        for id_ in self.ids():
            try:
                entry = self.get(id_)
            except BankError as error:
                yield Trouble(id_, "entry", error.message)
                continue
            yield from contradictions(entry, id_)
            if verify is not None:
                verdict = verify(entry.program, entry.answer)
                if verdict.verdict != "verified":
                    yield Trouble(
                        id_, "program", f"{verdict.verdict}, {verdict.cause}: {verdict.detail}"
                    )
            if not entry.blocks:
                yield Trouble(id_, "block", "it has none")
            for block in entry.blocks.values():
                yield from self._check_block(entry, block, answerer)

    def _check_block(
        self, entry: Entry, block: Mapping[str, Any], answerer: BlockAnswerer | None
    ) -> Iterator[Trouble]:
        name = str(block["name"])
        try:
            with self.library.open(name) as opened:
                if opened.block_id != block["id"]:
                    yield Trouble(name, "block", "it is not the block that the entry names")
                if opened.header.text != entry.document():
                    yield Trouble(name, "block", "it does not hold what the entry says")
                opened.verify()
                if answerer is not None and block["model_sha256"] == answerer.model_sha256:
                    answerer.certify(opened)
        except ToolkitError as error:
            yield Trouble(name, "block", f"{error.kind}: {error.message}")

    def _check_library(self) -> Iterator[Trouble]:
        for path in sorted((self.path / _ENTRIES).glob("*")):
            if not path.name.startswith(".") and not _is_entry_file(path):
                yield Trouble(ascii(path.name)[1:-1], "entry", "no entry can have this file")
        entries = [entry for id_ in self.ids() if (entry := self._found(id_)) is not None]
        known = {str(block["name"]) for entry in entries for block in entry.blocks.values()}
        kept = {_MERGED, *self.set_aside_ids()}
        for line in self.library.list():
            if line.name is None or (
                line.name not in known and line.name.rpartition("@")[0] not in kept
            ):
                yield Trouble(line.name or line.id, "block", "no entry names it")


# -- files -----------------------------------------------------------------------------------------


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreFull(
            "a folder of the bank cannot be made", got=error.strerror, where=path
        ) from error


def _is_entry_file(path: Path) -> bool:
    return path.suffix == ".json" and _ID.fullmatch(path.stem) is not None and path.is_file()


def _seal(fields: Mapping[str, Any]) -> str | None:
    """The seal of an entry's fields; None for what no writer can have sealed (NaN)."""
    try:
        return sha256_of(fields)
    except (ValueError, RecursionError):
        return None


_TYPES: Mapping[str, type] = {
    "id": str,
    "problem": str,
    "sha256": str,
    "answer": int,
    "program": str,
    "program_sha256": str,
    "parametric": bool,
    "findings": list,
    "verification": dict,
    "provenance": dict,
    "need": dict,
    "blocks": dict,
    "created": str,
}
_BLOCK_TYPES: Mapping[str, type] = {
    "name": str,
    "id": str,
    "model": str,
    "model_sha256": str,
    "n_tokens": int,
}


def _malformed(fields: Mapping[str, Any]) -> Iterator[str]:
    """Fields that are missing, one too many, or of another type: a seal says that nothing changed
    since, not that it was right.
    """
    yield from sorted(_TYPES.keys() ^ fields.keys())
    yield from (name for name, kind in _TYPES.items() if type(fields[name]) is not kind)
    if fields["answer"] not in GOLDS:
        yield "answer"
    if not all(isinstance(one, str) for one in fields["findings"]):
        yield "findings"
    for told in fields["need"].values():
        if not isinstance(told, dict) or not all(
            isinstance(told.get(key), str) for key in ("solved", "by")
        ):
            yield "need"
    for block in fields["blocks"].values():
        if not isinstance(block, dict) or any(
            type(block.get(key)) is not kind for key, kind in _BLOCK_TYPES.items()
        ):
            yield "blocks"
    # JSON can hold half a character, which can be neither tokenized nor printed.
    yield from (
        name
        for name in ("problem", "program")
        if any("\ud800" <= char <= "\udfff" for char in fields[name])
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_ENTRY_BYTES + 1)
        record = json.loads(data) if len(data) <= _MAX_ENTRY_BYTES else None
    except OSError as error:
        raise StoreDamaged(
            "a file of the bank cannot be read", got=error.strerror, where=path
        ) from error
    except (ValueError, RecursionError) as error:
        raise BankError("a file of the bank is damaged", got=error, where=path) from error
    if not isinstance(record, dict):
        raise BankError("a file of the bank is damaged", expected="a JSON object", where=path)
    return record


def _write(path: Path, record: Mapping[str, Any]) -> None:
    """Put the record at `path` whole or not at all, on the disk when this returns."""
    text = json.dumps(record, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    durable.write_output(path, text)
