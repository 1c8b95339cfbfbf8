"""A run on disk: an append-only log of attempts that survives `kill -9`, and the transcripts beside
it.

A run is a folder:

    run.jsonl           one record a line: the header first, then sessions and attempts. No text of
                        a problem or of a model.
    transcripts.jsonl   prompts' questions, responses and programs, one line an attempt; written
                        first, named by hash in the log
    prefixes/           the library of the KV blocks of the shared prompt prefixes

Each line of `run.jsonl` is one JSON object with `chain`: the SHA-256 over the chain of the line
before and the line's other fields in canonical JSON. A line is written in one call and synced
before the next attempt starts, so a crash can damage only the
last line: a last line that is no complete record is a *torn write*, cut off when the run goes on.
Anything else that does not fit the chain is damage, and is refused.

Deliberately does not know: what an attempt consists of. Totals are sums over attempt records and
nothing else, so they are right however often a run was interrupted; time spent on an attempt that
never finished is in no record.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from galahad.errors import RunLogError
from galahad.measure.canonical import canonical, sha256_of
from taliesin.errors import StoreFull, UsageError
from taliesin.host import durable
from taliesin.host.locks import Lock, is_held

SCHEMA = "galahad.run/1"
LOG = "run.jsonl"
TRANSCRIPTS = "transcripts.jsonl"
PREFIXES = "prefixes"

Record = dict[str, Any]
Key = tuple[str, int]
"""An attempt: problem id, number of the attempt (from 0)."""


def _chain(previous: str, record: Mapping[str, Any]) -> str:
    fields = {name: value for name, value in record.items() if name != "chain"}
    return hashlib.sha256(previous.encode() + b"\n" + canonical(fields)).hexdigest()


@dataclass(frozen=True)
class Run:
    """What a log holds. `torn_bytes` is the length of an incomplete last record that was left out;
    `end` where it begins.
    """

    path: Path
    header: Record
    sessions: tuple[Record, ...]
    attempts: tuple[Record, ...]
    chain: str
    end: int
    torn_bytes: int

    @property
    def done(self) -> frozenset[Key]:
        return frozenset((record["problem"], record["attempt"]) for record in self.attempts)


class _Line(NamedTuple):
    start: int
    data: bytes
    complete: bool


def read(folder: Path) -> Run:
    """The run in `folder`, its chain checked. Needs no lock: it may be running.

    Raises:
        RunLogError: no run there, a damaged one (the message names the line), or one of a newer
        version.
    """
    path = folder / LOG
    if path.exists() and not path.is_file():
        raise RunLogError("the run log is no file", where=path)
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise RunLogError("no run there", expected=f"a folder with {LOG}", where=folder) from None
    except OSError as error:
        raise RunLogError("the run cannot be read", got=error.strerror, where=path) from error
    return _parse(path, data)


def _lines(data: bytes) -> Iterator[_Line]:
    start = 0
    while start < len(data):
        at = data.find(b"\n", start)
        end = len(data) if at < 0 else at
        yield _Line(start, data[start:end], at >= 0)
        start = end + 1


def _object(data: bytes) -> Record | None:
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _parse(path: Path, data: bytes) -> Run:
    header: Record | None = None
    sessions: list[Record] = []
    attempts: list[Record] = []
    keys: set[Key] = set()
    chain, end = "", 0
    for number, line in enumerate(_lines(data), 1):
        where = f"{path}, line {number}"
        record = _object(line.data)
        if record is None or not line.complete:
            # Only the end of the file can be half written. A block that was allocated and never
            # written reads as zeros.
            if line.start + len(line.data) + line.complete == len(data):
                return _run(path, header, sessions, attempts, chain, end, len(data) - end)
            raise RunLogError(
                "the run log is damaged",
                expected="a JSON object",
                got=ascii(line.data[:40]),
                where=where,
            )
        if number == 1 and record.get("schema") != SCHEMA:
            raise RunLogError(
                "not a run log of this version",
                expected=SCHEMA,
                got=record.get("schema"),
                where=where,
            )
        if not _continues(chain, record):
            raise RunLogError(
                "the run log is damaged: a record is not the one that was written here",
                expected="a record whose hash continues the chain",
                got=f"{record.get('kind')} {record.get('problem', '')}".strip(),
                where=where,
                hint="restore the file from a copy: what stands in it now proves nothing",
            )
        match record.get("kind"):
            case "run" if number == 1:
                header = record
            case "session":
                sessions.append(record)
            case "attempt":
                key = _key(record, where)
                if key in keys:
                    raise RunLogError(
                        "an attempt is in the log twice",
                        got=f"{key[0]}, attempt {key[1]}",
                        where=where,
                    )
                keys.add(key)
                attempts.append(record)
            case kind:
                raise RunLogError(
                    "unknown record", expected="session or attempt", got=kind, where=where
                )
        chain, end = record["chain"], line.start + len(line.data) + 1
    return _run(path, header, sessions, attempts, chain, end, len(data) - end)


def _continues(chain: str, record: Record) -> bool:
    try:
        return bool(record.get("chain") == _chain(chain, record))
    except (ValueError, RecursionError):  # NaN, or nested too deeply: never written here
        return False


def _key(record: Record, where: str) -> Key:
    problem, attempt = record.get("problem"), record.get("attempt")
    if not isinstance(problem, str) or type(attempt) is not int:
        raise RunLogError(
            "an attempt without a problem or number",
            got=f"{problem!r}, attempt {attempt!r}",
            where=where,
        )
    return problem, attempt


def _run(
    path: Path,
    header: Record | None,
    sessions: list[Record],
    attempts: list[Record],
    chain: str,
    end: int,
    torn_bytes: int,
) -> Run:
    if header is None:
        raise RunLogError(
            "the run log has no header",
            where=path,
            hint="nothing was solved yet: start with a new --out",
        )
    return Run(path.parent, header, tuple(sessions), tuple(attempts), chain, end, torn_bytes)


class RunLog:
    """A run that is being written. Only one process at a time can have it open."""

    def __init__(self, run: Run, lock: Lock, log: int, transcripts: int) -> None:
        self._run = run
        self._lock = lock
        self._log, self._transcripts = log, transcripts
        self._chain = run.chain
        self.done = set(run.done)

    @property
    def folder(self) -> Path:
        return self._run.path

    @property
    def recovered_bytes(self) -> int:
        """Bytes of a torn last record that were cut off on opening."""
        return self._run.torn_bytes

    @property
    def attempts(self) -> tuple[Record, ...]:
        """The attempts that were in the log when it was opened."""
        return self._run.attempts

    @classmethod
    def create(cls, folder: Path, header: Mapping[str, Any]) -> Self:
        """A new run in `folder`, which must be empty or not exist.

        Raises:
            UsageError: there is a run already, or other files.
        """
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            is_run = (folder / LOG).exists()
            raise UsageError(
                f"{folder} holds a run already" if is_run else f"{folder} is not empty",
                hint="--resume goes on with it; another --out starts anew"
                if is_run
                else "name a new folder",
            )
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            log = _open(folder / LOG)
        except OSError as error:
            raise StoreFull(
                "the run's folder cannot be written", got=error.strerror, where=folder
            ) from error
        lock = _lock_of(folder)
        try:
            lock.acquire()
            record = {"schema": SCHEMA, "kind": "run", **header}
            record["chain"] = _chain("", record)
            line = canonical(record) + b"\n"
            _append(log, line, folder / LOG)
            durable.sync_folder(folder)
            run = Run(folder, record, (), (), record["chain"], len(line), 0)
            return cls(run, lock, log, _open(folder / TRANSCRIPTS))
        except BaseException:
            lock.release()
            os.close(log)
            raise

    @classmethod
    def resume(cls, folder: Path, header: Mapping[str, Any]) -> Self:
        """Go on with the run in `folder`, whose header must say the same as `header` in every field
        but `created`.

        Raises:
            RunLogError: no run, a damaged one, one of other inputs (the fields are named), or one
            that is running.
        """
        read(folder)  # refuses before anything is opened for writing
        try:
            log = _open(folder / LOG)
        except OSError as error:
            raise StoreFull(
                "the run cannot be written", got=error.strerror, where=folder
            ) from error
        lock = _lock_of(folder)
        try:
            lock.acquire()
            run = read(folder)
            _require_same(run, header)
            if run.torn_bytes:
                os.ftruncate(log, run.end)
                os.fsync(log)
            transcripts = _open(folder / TRANSCRIPTS)
            size = os.fstat(transcripts).st_size
            if size and os.pread(transcripts, 1, size - 1) != b"\n":
                _append(
                    transcripts, b"\n", folder / TRANSCRIPTS
                )  # ends a torn line: no transcript, and no part of the next
            return cls(run, lock, log, transcripts)
        except BaseException:
            lock.release()
            os.close(log)
            raise

    def session(self, fields: Mapping[str, Any]) -> None:
        """Note that a process starts to work on the run."""
        self._write({"kind": "session", **fields})

    def attempt(
        self, problem: str, attempt: int, fields: Mapping[str, Any], transcript: Mapping[str, Any]
    ) -> Record:
        """Store one finished attempt; on disk when this returns. The transcript goes first, the log
        names its hash.
        """
        key = (problem, attempt)
        assert key not in self.done, f"attempt {key} twice"
        told = {"problem": problem, "attempt": attempt, **transcript}
        _append(self._transcripts, canonical(told) + b"\n", self.folder / TRANSCRIPTS)
        record = self._write(
            {
                "kind": "attempt",
                "problem": problem,
                "attempt": attempt,
                **fields,
                "transcript_sha256": sha256_of(told),
            }
        )
        self.done.add(key)
        return record

    def _write(self, record: Record) -> Record:
        record["chain"] = _chain(self._chain, record)
        _append(self._log, canonical(record) + b"\n", self.folder / LOG)
        self._chain = record["chain"]
        return record

    def close(self) -> None:
        os.close(self._transcripts)
        os.close(self._log)
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def transcripts(run: Run) -> dict[Key, Record]:
    """The transcripts of a run's attempts, each checked against the hash in the log. Attempts
    without one are left out.

    Raises:
        RunLogError: a transcript is not the one that the log names.
    """
    wanted = {
        (record["problem"], record["attempt"]): record["transcript_sha256"]
        for record in run.attempts
    }
    path = run.path / TRANSCRIPTS
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    found: dict[Key, Record] = {}
    others: set[Key] = set()
    for line in _lines(data):
        # An attempt that died between its two files was done again: of its lines only one has the
        # hash.
        record = _object(line.data)
        if record is None or (key := (record.get("problem"), record.get("attempt"))) not in wanted:
            continue
        if sha256_of(record) == wanted[key]:
            found[key] = record
        else:
            others.add(key)
    if changed := sorted(others - set(found)):
        raise RunLogError(
            "a transcript is not the one that the log names",
            got=f"{changed[0][0]}, attempt {changed[0][1]}",
            where=path,
        )
    return found


def is_running(folder: Path) -> bool:
    """Whether a process has the run open for writing."""
    return is_held(folder / LOG)


def _require_same(run: Run, header: Mapping[str, Any]) -> None:
    expected = json.loads(canonical({**header, "schema": SCHEMA, "kind": "run"}))
    differing = sorted(
        name
        for name in (set(expected) | set(run.header)) - {"created", "chain"}
        if expected.get(name) != run.header.get(name)
    )
    if not differing:
        return
    shown = []
    for name in differing:
        stored, given = run.header.get(name), expected.get(name)
        if isinstance(stored, dict) and isinstance(given, dict):
            inner = sorted(k for k in set(stored) | set(given) if stored.get(k) != given.get(k))
            shown += [
                f"{name}.{k}: {_brief(stored.get(k))} there, {_brief(given.get(k))} now"
                for k in inner
            ]
        else:
            shown.append(f"{name}: {_brief(stored)} there, {_brief(given)} now")
    raise RunLogError(
        "this is the run of other inputs",
        got="; ".join(shown),
        where=run.path,
        hint="give the options that it was started with, or another --out",
    )


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _lock_of(folder: Path) -> Lock:
    return Lock(
        folder / LOG,
        seconds=0.0,
        busy="another process is working on this run",
        hint="galahad status RUN",
        error=RunLogError,
    )


def _append(fd: int, data: bytes, where: Path) -> None:
    """`data` at the end of the file and on the disk, or, where that fails, the file as it was
    before.
    """
    before = os.fstat(fd).st_size
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    except OSError as error:
        os.ftruncate(fd, before)
        raise StoreFull(
            "the attempt could not be recorded",
            got=error.strerror,
            where=where,
            hint="free some space, then --resume",
        ) from error
