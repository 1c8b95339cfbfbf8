"""Models by name or path: the file on this machine that is meant, and whether it is what the
catalogue says.

The front of `catalogue`, `filehash` and `download` for everything above. It deliberately knows
nothing of what is in a GGUF
file beyond its magic and version: loading it is `taliesin.engine.llama`.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from taliesin.errors import ModelError
from taliesin.host.filehash import file_sha256, remembered_sha256
from taliesin.host.places import cache_dir, data_dir, models_dir
from taliesin.models.catalogue import DEFAULT, ModelEntry, catalogue, entry, find, nearest
from taliesin.models.download import pull

__all__ = [
    "DEFAULT",
    "ModelEntry",
    "Verification",
    "cache_dir",
    "catalogue",
    "check_gguf",
    "data_dir",
    "entry",
    "file_sha256",
    "find",
    "models_dir",
    "pull",
    "remembered_sha256",
    "resolve",
    "verify",
]

_GGUF_VERSIONS = (2, 3)


def resolve(name_or_path: str | Path) -> Path:
    """The GGUF file that a catalogue name or a path stands for. A name comes first, `./NAME` is
    always a path.

    Looks at magic, version and, for a name, the size; not at the hash (`file_sha256` does).

    Raises:
        ModelError: nothing there, or not a GGUF file; the hint is the command that mends it.
    """
    text = str(name_or_path)
    known = find(text)
    if known and (known.path.exists() or not Path(text).is_file()):
        path, mend = known.path, f"taliesin model pull {known.name}"
        if not path.is_file():
            raise ModelError(f"model {known.name} is not on this machine", where=path, hint=mend)
        if path.stat().st_size != known.n_bytes:
            raise ModelError(
                f"the file of model {known.name} is not whole",
                expected=f"{known.n_bytes} bytes",
                got=f"{path.stat().st_size} bytes",
                where=path,
                hint=mend,
            )
        check_gguf(path)
        return path
    path = Path(text).expanduser().absolute()
    if not text or not os.path.exists(path):  # pathlib raises for a name that is too long
        raise ModelError("no model of that name and no such file", got=text, hint=nearest(text))
    if not path.is_file():
        raise ModelError("a model is one GGUF file, this is something else", where=path)
    check_gguf(path)
    return path


def with_sha256(sha256: str, given: str | None = None) -> Path | None:
    """The model file with that hash: `given` (a name or a path) if it is the one, else one of the
    catalogue; None if neither is here.

    Raises:
        ModelError: `given` is nothing, or a model file is not what it should be.
    """
    if given is not None and file_sha256(path := resolve(given)) == sha256:
        return path
    known = next(
        (known for known in catalogue() if known.sha256 == sha256 and known.path.is_file()), None
    )
    return None if known is None else resolve(known.name)


def check_gguf(path: Path) -> int:
    """The GGUF version of a file, or ModelError. Source: the header in ggml's docs/gguf.md: magic,
    u32 version.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(24)
    except OSError as error:
        raise ModelError("the model file cannot be read", got=error.strerror, where=path) from error
    if len(head) < 24 or head[:4] != b"GGUF":
        raise ModelError(
            "not a GGUF file", expected="it to start with GGUF", got=repr(head[:4]), where=path
        )
    (version,) = struct.unpack_from("<I", head, 4)
    if version not in _GGUF_VERSIONS:
        raise ModelError(
            "a GGUF file of a version that is not read",
            expected=_GGUF_VERSIONS,
            got=version,
            where=path,
        )
    return int(version)


@dataclass(frozen=True)
class Verification:
    """What a file is against its catalogue entry; `expected` and `got` say where they part."""

    name: str
    path: Path
    status: Literal["ok", "missing", "wrong size", "wrong hash"]
    expected: str
    got: str


def verify(known: ModelEntry) -> Verification:
    """Hash the file of an entry now, whatever was remembered of it."""
    path = known.path
    if not path.is_file():
        return Verification(known.name, path, "missing", known.sha256, "")
    size = path.stat().st_size
    if size != known.n_bytes:
        return Verification(
            known.name, path, "wrong size", f"{known.n_bytes} bytes", f"{size} bytes"
        )
    got = file_sha256(path, remembered=False)
    return Verification(
        known.name, path, "ok" if got == known.sha256 else "wrong hash", known.sha256, got
    )
