"""The files beside a plan: where they are, and how a lock and a record are read and written.

Promises: a file that is not as it was written is refused: its bytes are canonical JSON, and its
seal is the hash of its other fields. Deliberately does not know: whether what it says is true.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from galahad.errors import PreregError
from galahad.evidence.prereg import inputs
from galahad.evidence.prereg.records import DONE, Lock, Plan, RunRecord
from galahad.measure.canonical import canonical, sha256_of
from taliesin.errors import StoreFull
from taliesin.host import durable, locks, records

R = TypeVar("R", Lock, RunRecord)


def lock_path(plan: Path) -> Path:
    return plan.with_suffix(".lock.json")


def plan_path(lock: Path) -> Path:
    return lock.with_name(lock.name.removesuffix(".lock.json") + ".yaml")


def record_path(lock: Path) -> Path:
    return lock.with_name(lock.name.removesuffix(".lock.json") + ".record.json")


def alone(path: Path, doing: str) -> AbstractContextManager[None]:
    """No other process that asks does the same with this file until the end; a killed one asks no
    more.

    Raises:
        PreregError: another does. StoreFull: the file cannot be locked.
    """
    return locks.held(path, busy=f"it is {doing} by another process", error=PreregError)


def read_lock(path: Path) -> tuple[Lock, str]:
    """The lock, and the SHA-256 of its file.

    Raises:
        PreregError: not a lock, or edited by hand; the field is named.
    """
    lock, digest = _read(path, Lock, "the lock")
    if odd := set(lock.inputs) ^ set(inputs.labels(lock.plan)):
        raise PreregError(
            "the lock's inputs are not those of its plan", got=", ".join(sorted(odd)), where=path
        )
    plan = replace(lock.plan, commands=tuple(map(tuple, lock.plan.words)))
    return replace(lock, plan=plan), digest


def read_record(path: Path, plan: Plan) -> tuple[RunRecord, str]:
    """The record of a run of `plan`, and the SHA-256 of its file.

    Raises:
        PreregError: not a record, of another plan, or edited by hand; the field is named.
    """
    record, digest = _read(path, RunRecord, "the record")
    if odd := set(record.outputs) ^ set(plan.outputs):
        raise PreregError(
            "the record's outputs are not those of the plan", got=", ".join(sorted(odd)), where=path
        )
    codes, n = record.exit_codes, len(plan.commands)
    stopped = next((i for i, code in enumerate(codes, start=1) if code not in DONE), n)
    if len(codes) != stopped:
        raise PreregError(
            "the record's exit codes are not those of its plan",
            expected=f"{stopped} of {n} commands",
            got=len(codes),
            where=path,
        )
    return record, digest


def _read(path: Path, kind: type[R], what: str) -> tuple[R, str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PreregError("it cannot be read", got=error.strerror, where=path) from error
    try:
        fields = json.loads(data)
        is_canonical = canonical(fields) + b"\n" == data
        found = records.convert(fields, kind, what=what, where=path, error=PreregError)
    except (ValueError, RecursionError) as error:
        raise PreregError("not a lock or record", got=str(error), where=path) from error
    if not is_canonical:
        raise PreregError("the file was edited: it is not as it was written", where=path)
    if found.is_sealed and fields.pop("seal") != sha256_of(fields):
        raise PreregError("the file was edited: its seal is not that of its fields", where=path)
    return found, hashlib.sha256(data).hexdigest()


def write(path: Path, fields: Mapping[str, Any]) -> str:
    """Write canonical JSON with its seal so that a crash leaves the old state or the new one; the
    SHA-256 of the file.
    """
    sealed = {key: value for key, value in fields.items() if key != "seal"}
    data = canonical({**sealed, "seal": sha256_of(sealed)}) + b"\n"
    try:
        durable.write(path, data)
    except OSError as error:
        raise StoreFull("it could not be written", got=error.strerror, where=path) from error
    return hashlib.sha256(data).hexdigest()
