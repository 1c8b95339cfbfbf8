"""What a plan names, and the SHA-256 of each: packages, prompts, files, folders, models, versions.

Deliberately does not know: what a hash should be.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from galahad.errors import PreregError
from galahad.evidence.prereg.records import Plan
from galahad.solve import log as runlog
from galahad.solve import prompts
from taliesin.host import filehash
from taliesin.models import resolve as models

PACKAGES = ("galahad", "taliesin")


def hash_path(path: Path) -> str:
    """SHA-256 of a file, or of a folder: of the sorted lines
    `<sha256>  <relative path>` of its files.

    Left out are hidden files, `__pycache__`, and the prefix blocks in a run's folder, which are a
    cache.

    Raises:
        PreregError: it is not there, cannot be read, or holds a symbolic link or a name with a line
            break, of which a list of lines could say two things.
    """
    if os.path.islink(path):
        raise PreregError("a symbolic link is not hashed", where=path)
    if os.path.isfile(path):  # os.path, because pathlib raises for a name that is too long
        return hash_file(path)
    if not os.path.isdir(path):
        raise PreregError("it is not there", where=path)
    lines = [f"{hash_file(file)}  {file.relative_to(path).as_posix()}\n" for file in _files(path)]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(_walk(folder)):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") or part == "__pycache__" for part in parts):
            continue
        if any(
            a.name == runlog.PREFIXES and (a.parent / runlog.LOG).exists()
            for a in (path, *path.parents)
        ):
            continue
        if path.is_symlink():
            raise PreregError("a symbolic link is not hashed", where=path)
        if path.is_file():
            if "\n" in str(path.relative_to(folder)):
                raise PreregError("a name with a line break is not hashed", where=ascii(str(path)))
            yield path


def _walk(folder: Path) -> Iterator[Path]:
    """All that is below. Unlike `rglob`, says so where it may not look."""

    def refuse(error: OSError) -> NoReturn:
        raise PreregError("it cannot be read", got=error.strerror, where=error.filename) from error

    for here, folders, files in os.walk(folder, onerror=refuse):
        yield from (Path(here, name) for name in (*folders, *files))


def hash_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PreregError("it cannot be read", got=error.strerror, where=path) from error


def package_sha256(name: str) -> str:
    """Of the package's source as it is installed, wherever that is."""
    root = package_folder(name)
    lines = [
        f"{hash_file(f)}  {f.relative_to(root).as_posix()}\n"
        for f in _files(root)
        if f.suffix == ".py"
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def package_folder(name: str) -> Path:
    module = sys.modules.get(name) or __import__(name)
    return Path(str(module.__file__)).absolute().parent


def of_plan(plan: Plan, root: Path) -> dict[str, str]:
    """Every input's label -> SHA-256. Raises PreregError, ModelError where one is not there."""
    found = {f"package {name}": package_sha256(name) for name in PACKAGES}
    found["prompts"] = prompts.prompts_sha256()
    found |= {f"file {place}": hash_path(root / place) for place in plan.files}
    found |= {f"model {name}": model_sha256(name, root) for name in plan.models}
    return found


def labels(plan: Plan) -> list[str]:
    """What `of_plan` hashes."""
    return (
        [f"package {name}" for name in PACKAGES]
        + ["prompts"]
        + [f"file {place}" for place in plan.files]
        + [f"model {name}" for name in plan.models]
    )


def model_sha256(name: str, root: Path) -> str:
    """Of a model by its catalogue name, or by a path relative to the plan; read anew, not
    remembered.

    Raises:
        ModelError: it is not here.
    """
    path = name if models.find(name) else str(root / name)
    return filehash.model_sha256(models.resolve(path), remembered=False)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("llama-cpp-python", "numpy", "scipy", "sympy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
