"""Models by name or path: the file on this machine that is meant, and whether it is what the
catalogue says.

The front of `catalogue`, `filehash` and `download` for everything above. It deliberately knows
nothing of what is in a GGUF file beyond its magic, its version and that a projector is no model:
loading it is `taliesin.engine.llama`.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from taliesin.errors import ModelError
from taliesin.host.filehash import file_sha256, model_parts, model_sha256, remembered_sha256
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
    "model_parts",
    "model_sha256",
    "models_dir",
    "pull",
    "remembered_sha256",
    "resolve",
    "verify",
]

_GGUF_VERSIONS = (2, 3)
_HEAD_BYTES = 1 << 16
# Source: ggml's docs/gguf.md, gguf_metadata_value_type
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING = 8


def resolve(name_or_path: str | Path) -> Path:
    """The GGUF file that a catalogue name or a path stands for. A name comes first, `./NAME` is
    always a path. Of a split GGUF it is the first part, which llama.cpp is given.

    Looks at magic, version and, for a name, the size; not at the hash (`model_sha256` does).

    Raises:
        ModelError: nothing there, not a GGUF file, a projector, or not all of a split one; the hint
        is the command that mends it.
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
        return _checked(path)
    path = Path(text).expanduser().absolute()
    if not text or not os.path.exists(path):  # pathlib raises for a name that is too long
        raise ModelError("no model of that name and no such file", got=text, hint=nearest(text))
    if not path.is_file():
        raise ModelError("a model is one GGUF file, this is something else", where=path)
    return _checked(path)


def _checked(path: Path) -> Path:
    for part in model_parts(path):
        check_gguf(part)
    if _architecture(path) == b"clip":
        raise ModelError(
            "a projector of images or sound (mmproj), no model that reads text",
            expected="the model's own GGUF file",
            got="general.architecture clip",
            where=path,
        )
    return path


def _architecture(path: Path) -> bytes:
    """`general.architecture` if it stands before every array near the start, as writers put it;
    else nothing: it only makes an error clearer, llama.cpp refuses what it cannot load.
    """
    with path.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    (n_pairs,) = struct.unpack_from("<Q", head, 16)
    at = 24

    def string() -> bytes:
        nonlocal at
        (length,) = struct.unpack_from("<Q", head, at)
        at += 8 + length
        return head[at - length : at]

    try:
        for _ in range(n_pairs):
            key = string()
            (kind,) = struct.unpack_from("<I", head, at)
            at += 4
            if kind == _STRING:
                value = string()
                if key == b"general.architecture":
                    return value
            elif kind in _VALUE_BYTES:
                at += _VALUE_BYTES[kind]
            else:
                break
    except (struct.error, OverflowError, IndexError):
        pass
    return b""


def with_sha256(sha256: str, given: str | None = None) -> Path | None:
    """The model file with that hash: `given` (a name or a path) if it is the one, else one of the
    catalogue; None if neither is here.

    Raises:
        ModelError: `given` is nothing, or a model file is not what it should be.
    """
    if given is not None and model_sha256(path := resolve(given)) == sha256:
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
