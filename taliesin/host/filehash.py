"""The SHA-256 of large files, remembered per file identity, so that a model is not read whole at
every start; and the identity of a model, which may be split over several files.

What is remembered is a cache: a damaged or missing one costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Literal

from taliesin.errors import FormatError, ModelError
from taliesin.host import console, durable, records
from taliesin.host.kinds import Digest
from taliesin.host.places import cache_dir
from taliesin.host.records import Record

_CHUNK_BYTES = 4 << 20
_RACY_SECONDS = 2.0
_HASHES_KEPT = 512
# Source: llama_split_path in llama.cpp, "%s-%05d-of-%05d.gguf"; llama.cpp loads further files by
# such names only, and refuses a split model under any other.
_PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


class RememberedHashes(Record):
    """What `sha256.json` of the cache folder says: file identity -> SHA-256."""

    SCHEMA = "taliesin.sha256/1"

    files: dict[str, Digest]
    schema: Literal["taliesin.sha256/1"] = "taliesin.sha256/1"


def file_sha256(path: Path, *, remembered: bool = True) -> str:
    """The SHA-256 of a file's bytes, in hex; remembered per file identity (device, inode, size,
    mtime, ctime).

    A file whose inode changed less than two seconds ago is hashed and not remembered: on a file
    system with coarse time stamps it could change again under the same identity.

    Raises:
        ModelError: not readable, or changed while it was read.
    """
    try:
        with path.open("rb") as stream:
            identity = _identity(os.fstat(stream.fileno()))
            if remembered and (known := _remembered().get(identity)):
                return known
            digest = _digest(stream.fileno(), os.fstat(stream.fileno()).st_size, path.name)
            after = os.fstat(stream.fileno())
    except OSError as error:
        raise ModelError("the model file cannot be read", got=error.strerror, where=path) from error
    if _identity(after) != identity:
        raise ModelError("the file changed while it was read", where=path)
    if time.time_ns() - after.st_ctime_ns >= _RACY_SECONDS * 1e9:
        _remember(identity, digest)
    return digest


def model_parts(path: Path) -> tuple[Path, ...]:
    """The files of the model that loading `path` reads, in order: itself, or every part of a split
    GGUF (`NAME-00001-of-00003.gguf`) whose first part it names.

    Decided by the name, as llama.cpp finds them; so what is loaded is never more than what is here.

    Raises:
        ModelError: `path` is a later part, or a part is missing.
    """
    named = _PART.fullmatch(path.name)
    number, count = (int(named[2]), int(named[3])) if named else (1, 1)
    if named is None or not 1 <= number <= count:
        return (path,)
    parts = tuple(
        path.with_name(f"{named[1]}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)
    )
    if number > 1:
        raise ModelError(
            "a later part of a split model, which is named by its first",
            expected=parts[0].name,
            got=path.name,
            where=path,
            hint=f"name {parts[0]}",
        )
    if missing := [part.name for part in parts if not part.is_file()]:
        raise ModelError(
            "a split model is not whole",
            expected=f"{count} parts",
            got=f"{count - len(missing)}, without {', '.join(missing[:3])}"
            + (f" and {len(missing) - 3} more" if len(missing) > 3 else ""),
            where=path,
        )
    return parts


def model_sha256(path: Path, *, remembered: bool = True) -> str:
    """The identity of a model, in hex. One file: the SHA-256 of its bytes. Several: the SHA-256 of
    the parts' own, each as 64 hex digits and a line feed, in order
    (`sha256sum NAME-*-of-*.gguf | sed 's/ .*//' | sha256sum`).

    Raises:
        ModelError: as `model_parts` and `file_sha256`.
    """
    digests = [file_sha256(part, remembered=remembered) for part in model_parts(path)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode("ascii")).hexdigest()


def remembered_sha256(path: Path) -> str | None:
    """The SHA-256 that `file_sha256` would give without reading the file, or None."""
    try:
        return _remembered().get(_identity(path.stat()))
    except OSError:
        return None


def _identity(stat: os.stat_result) -> str:
    return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"


def _digest(descriptor: int, n_bytes: int, label: str) -> str:
    digest, buffer = hashlib.sha256(), bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    with console.progress(f"hashing {label}", n_bytes, "bytes") as advance:
        while n := os.readv(descriptor, [buffer]):
            digest.update(view[:n])
            advance(n)
    return digest.hexdigest()


def _hash_file() -> Path:
    return cache_dir() / "sha256.json"


def _remembered() -> dict[str, str]:
    try:
        return records.read(_hash_file(), RememberedHashes, what="the remembered hashes").files
    except (OSError, FormatError):
        return {}  # a cache: what cannot be read is computed again


def _remember(identity: str, digest: str) -> None:
    # Two writers at once: the later one wins whole, and the other's entry is computed again some
    # day.
    files = {**_remembered(), identity: digest}
    kept = RememberedHashes(files=dict(list(files.items())[-_HASHES_KEPT:]))
    with contextlib.suppress(OSError):
        _hash_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        durable.write(_hash_file(), json.dumps(records.plain(kept)).encode())
