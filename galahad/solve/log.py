"""A run on disk, read: an append-only log of attempts that survives `kill -9`, and the transcripts
beside it. `galahad.solve.writer` writes it.

A run is a folder:

    run.jsonl           one record a line: the header first, then sessions and attempts. No text of
                        a problem or of a model.
    transcripts.jsonl   prompts' questions, responses and programs, one line an attempt; written
                        first, named by hash in the log
    prefixes/           the library of the KV blocks of the shared prompt prefixes

Each line of `run.jsonl` is one JSON object with `chain`: the SHA-256 over the chain of the line
before and the line's other fields in canonical JSON. A line is written in one call and synced
before the next attempt starts, so a crash can damage only the last line: a last line that is no
complete record is a *torn write*, cut off when the run goes on. Anything else that does not fit the
chain, or is not as its record says (`galahad.solve.records`), is damage, and is refused.

Totals are sums over attempt records and nothing else, so they are right however often a run was
interrupted; time spent on an attempt that never finished is in no record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from galahad.errors import RunLogError
from galahad.measure.canonical import canonical, sha256_of
from galahad.solve.records import Attempt, Key, RunHeader, Session, Transcript
from taliesin.host import records

LOG = "run.jsonl"
TRANSCRIPTS = "transcripts.jsonl"
PREFIXES = "prefixes"

Line = dict[str, Any]
T = TypeVar("T")


def chained(previous: str, line: Mapping[str, Any]) -> str:
    """The chain of a line of the log behind the chain of the line before it."""
    fields = {name: value for name, value in line.items() if name != "chain"}
    return hashlib.sha256(previous.encode() + b"\n" + canonical(fields)).hexdigest()


@dataclass(frozen=True)
class Run:
    """What a log holds. `torn_bytes` is the length of an incomplete last record that was left out;
    `end` where it begins.
    """

    path: Path
    header: RunHeader
    sessions: tuple[Session, ...]
    attempts: tuple[Attempt, ...]
    chain: str
    end: int
    torn_bytes: int

    @property
    def done(self) -> frozenset[Key]:
        return frozenset(attempt.key for attempt in self.attempts)


class _RawLine(NamedTuple):
    start: int
    data: bytes
    complete: bool


def read(folder: Path) -> Run:
    """The run in `folder`, its chain and its records checked. Needs no lock: it may be running.

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
    return _Reader(path, data).run()


class _Reader:
    """Goes over the lines of a log, each in its place of the chain."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path = path
        self.data = data
        self.header: RunHeader | None = None
        self.sessions: list[Session] = []
        self.attempts: dict[Key, Attempt] = {}
        self.chain = ""
        self.end = 0

    def run(self) -> Run:
        for number, raw in enumerate(_raw_lines(self.data), 1):
            where = f"{self.path}, line {number}"
            line = _object(raw.data)
            if line is None or not raw.complete:
                # Only the end of the file can be half written. A block that was allocated and
                # never written reads as zeros.
                if raw.start + len(raw.data) + raw.complete == len(self.data):
                    break
                raise RunLogError(
                    "the run log is damaged",
                    expected="a JSON object",
                    got=ascii(raw.data[:40]),
                    where=where,
                )
            if number == 1 and line.get("schema") != RunHeader.SCHEMA:
                raise RunLogError(
                    "not a run log of this version",
                    expected=RunHeader.SCHEMA,
                    got=line.get("schema"),
                    where=where,
                )
            self._require_chain(line, where)
            self._take(number, line, where)
            self.chain, self.end = line["chain"], raw.start + len(raw.data) + 1
        if self.header is None:
            raise RunLogError(
                "the run log has no header",
                where=self.path,
                hint="nothing was solved yet: start with a new --out",
            )
        return Run(
            path=self.path.parent,
            header=self.header,
            sessions=tuple(self.sessions),
            attempts=tuple(self.attempts.values()),
            chain=self.chain,
            end=self.end,
            torn_bytes=len(self.data) - self.end,
        )

    def _require_chain(self, line: Line, where: str) -> None:
        try:
            continues = line.get("chain") == chained(self.chain, line)
        except (ValueError, RecursionError):  # NaN, or nested too deeply: never written here
            continues = False
        if not continues:
            raise RunLogError(
                "the run log is damaged: a record is not the one that was written here",
                expected="a record whose hash continues the chain",
                got=f"{line.get('kind')} {line.get('problem', '')}".strip(),
                where=where,
                hint="restore the file from a copy: what stands in it now proves nothing",
            )

    def _take(self, number: int, line: Line, where: str) -> None:
        match line.get("kind"):
            case "run" if number == 1:
                self.header = _record(line, RunHeader, "the run's header", where)
            case "session" if number > 1:
                self.sessions.append(_record(line, Session, "a session of the run", where))
            case "attempt" if number > 1:
                attempt = _record(line, Attempt, "an attempt of the run", where)
                if attempt.key in self.attempts:
                    raise RunLogError(
                        "an attempt is in the log twice",
                        got=f"{attempt.problem}, attempt {attempt.attempt}",
                        where=where,
                    )
                self.attempts[attempt.key] = attempt
            case kind:
                expected = "run" if number == 1 else "session or attempt"
                raise RunLogError("unknown record", expected=expected, got=kind, where=where)


def _record(line: Line, kind: type[T], what: str, where: object) -> T:
    return records.convert(line, kind, what=what, where=where, error=RunLogError)


def _raw_lines(data: bytes) -> Iterator[_RawLine]:
    start = 0
    while start < len(data):
        at = data.find(b"\n", start)
        end = len(data) if at < 0 else at
        yield _RawLine(start, data[start:end], at >= 0)
        start = end + 1


def _object(data: bytes) -> Line | None:
    # Not `records.parse`: a model's text may hold half a character, and a torn line is no error.
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def transcripts(run: Run) -> dict[Key, Transcript]:
    """The transcripts of a run's attempts, each checked against the hash in the log. Attempts
    without one are left out.

    Raises:
        RunLogError: a transcript is not the one that the log names.
    """
    wanted = {attempt.key: attempt.transcript_sha256 for attempt in run.attempts}
    path = run.path / TRANSCRIPTS
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    found: dict[Key, Transcript] = {}
    others: set[Key] = set()
    for number, raw in enumerate(_raw_lines(data), 1):
        # An attempt that died between its two files was done again: of its lines only one has the
        # hash.
        line = _object(raw.data)
        if line is None or (key := _key(line)) not in wanted:
            continue
        if sha256_of(line) == wanted[key]:
            where = f"{path}, line {number}"
            found[key] = _record(line, Transcript, "a transcript of the run", where)
        else:
            others.add(key)
    if changed := sorted(others - set(found)):
        raise RunLogError(
            "a transcript is not the one that the log names",
            got=f"{changed[0][0]}, attempt {changed[0][1]}",
            where=path,
        )
    return found


def _key(line: Line) -> Key | None:
    problem, attempt = line.get("problem"), line.get("attempt")
    return (problem, attempt) if isinstance(problem, str) and type(attempt) is int else None
