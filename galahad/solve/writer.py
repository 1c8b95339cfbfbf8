"""A run on disk, written: one process at a time appends to the log and the transcripts.

A record is on the disk before the next attempt begins; a write that fails leaves the file as it was
before. What the files are is said in `galahad.solve.log`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from galahad.errors import RunLogError
from galahad.measure.canonical import canonical, sha256_of
from galahad.solve.log import LOG, TRANSCRIPTS, Run, chained, read
from galahad.solve.records import Attempt, RunHeader, Session, Transcript
from taliesin.errors import StoreFull, UsageError
from taliesin.host import durable, locks, records

T = TypeVar("T", RunHeader, Session, Attempt)


class RunLog:
    """A run that is being written. Only one process at a time can have it open."""

    def __init__(self, run: Run, lock: locks.Lock, log: int, transcripts: int) -> None:
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
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts that were in the log when it was opened."""
        return self._run.attempts

    @classmethod
    def create(cls, folder: Path, header: RunHeader) -> Self:
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
        lock = _lock(folder)
        try:
            lock.acquire()
            header, line = _sealed("", header)
            _append(log, line, folder / LOG)
            durable.sync_folder(folder)
            run = Run(folder, header, (), (), header.chain, end=len(line), torn_bytes=0)
            return cls(run, lock, log, _open(folder / TRANSCRIPTS))
        except BaseException:
            lock.release()
            os.close(log)
            raise

    @classmethod
    def resume(cls, folder: Path, header: RunHeader) -> Self:
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
        lock = _lock(folder)
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
                # Ends a torn line: no transcript, and no part of the next.
                _append(transcripts, b"\n", folder / TRANSCRIPTS)
            return cls(run, lock, log, transcripts)
        except BaseException:
            lock.release()
            os.close(log)
            raise

    def session(self, session: Session) -> None:
        """Note that a process starts to work on the run."""
        self._write(session)

    def attempt(self, attempt: Attempt, transcript: Transcript) -> Attempt:
        """Store one finished attempt; on disk when this returns. The transcript goes first, the log
        names its hash.
        """
        assert attempt.key == transcript.key
        assert attempt.key not in self.done, f"attempt {attempt.key} twice"
        told = records.plain(transcript)
        _append(self._transcripts, canonical(told) + b"\n", self.folder / TRANSCRIPTS)
        stored = self._write(msgspec.structs.replace(attempt, transcript_sha256=sha256_of(told)))
        self.done.add(stored.key)
        return stored

    def _write(self, record: T) -> T:
        sealed, line = _sealed(self._chain, record)
        _append(self._log, line, self.folder / LOG)
        self._chain = sealed.chain
        return sealed

    def close(self) -> None:
        os.close(self._transcripts)
        os.close(self._log)
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_running(folder: Path) -> bool:
    """Whether a process has the run open for writing."""
    return locks.is_held(folder / LOG)


def _lock(folder: Path) -> locks.Lock:
    """The lock of a run is on its log: the folder needs no other file."""
    return locks.Lock(
        folder / LOG,
        seconds=0.0,
        busy="another process is working on this run",
        hint="galahad status RUN",
        error=RunLogError,
    )


def _sealed(previous: str, record: T) -> tuple[T, bytes]:
    """The record with its chain, and its line."""
    line = records.plain(record)
    line["chain"] = chained(previous, line)
    return msgspec.structs.replace(record, chain=line["chain"]), canonical(line) + b"\n"


def _require_same(run: Run, header: RunHeader) -> None:
    stored, given = (_inputs(one) for one in (run.header, header))
    differing = [
        f"{name}: {_brief(stored.get(name))} there, {_brief(given.get(name))} now"
        for name in sorted(stored.keys() | given.keys())
        if stored.get(name) != given.get(name)
    ]
    if differing:
        raise RunLogError(
            "this is the run of other inputs",
            got="; ".join(differing),
            where=run.path,
            hint="give the options that it was started with, or another --out",
        )


def _inputs(header: RunHeader) -> dict[str, Any]:
    """What a run was made of, by dotted names."""
    flat: dict[str, Any] = {}
    for name, value in records.plain(header).items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        elif name not in ("created", "chain"):
            flat[name] = value
    return flat


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


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
