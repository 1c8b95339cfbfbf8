"""What a sandboxed program may read: the interpreter's standard library, the system's shared
libraries and a few mathematics packages, found for the interpreter that runs the toolkit.

It does not know how reading is enforced (`launcher`: Landlock; `execution`: bind mounts). Paths
only, nothing is opened.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGES = ("sympy", "mpmath", "numpy", "scipy", "gmpy2", "networkx")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/usr/share/zoneinfo")


@dataclass(frozen=True)
class Readable:
    """An interpreter and what it needs; all paths are absolute, resolved and exist.

    `executable` is the base interpreter, not a virtual environment's link to it: the launcher does
    without `site`. `folders` (some are files) may be granted whole once `hidden` is left out:
    installed packages, ours among them, with the answers that they carry. Importing also lists
    `standard_library`. `packages` maps an importable name to its folder; `extras` are the shared
    libraries that wheels keep beside themselves; `loader` is the dynamic loader, by the path that
    executables name.
    """

    executable: str
    standard_library: str
    folders: tuple[str, ...]
    hidden: tuple[str, ...]
    packages: dict[str, str]
    extras: tuple[str, ...]
    loader: str | None

    def paths(self) -> tuple[str, ...]:
        """Files and folders to grant so that nothing in `hidden` is covered: a folder above one is
        replaced by its other entries, because a Landlock rule on a folder grants everything below
        it."""
        granted = [path for folder in self.folders for path in _without(folder, self.hidden)]
        return tuple(dict.fromkeys([*granted, *self.packages.values(), *self.extras, *DEVICES]))


def _is_above(folder: str, path: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _without(path: str, hidden: Iterable[str]) -> list[str]:
    if path in hidden or any(_is_above(h, path) for h in hidden):
        return []
    if not any(_is_above(path, h) for h in hidden):
        return [path]
    with os.scandir(path) as entries:
        children = sorted(entry.path for entry in entries if not entry.is_symlink())
    return [granted for child in children for granted in _without(child, hidden)]


def _real(paths: Iterable[str | Path | None]) -> tuple[str, ...]:
    """The paths that exist, resolved, without those below another one."""
    found = sorted({os.path.realpath(path) for path in paths if path and os.path.exists(path)})
    return tuple(path for path in found if not any(_is_above(other, path) for other in found))


def _library_folders() -> list[str]:
    """Where the dynamic loader looks: the multi-architecture folders (Debian), else lib64
    and lib.
    """
    triplet = sysconfig.get_config_var("MULTIARCH") or ""
    multiarch = [
        f"{root}/{triplet}"
        for root in ("/lib", "/usr/lib")
        if triplet and os.path.isdir(f"{root}/{triplet}")
    ]
    return multiarch or ["/lib64", "/usr/lib64", "/lib", "/usr/lib"]


def _loader() -> str | None:
    for name in (
        "/lib64/ld-linux-x86-64.so.2",
        "/lib/ld-linux-aarch64.so.1",
        *map(str, Path("/lib").glob("ld-musl-*")),
    ):
        if os.path.exists(name):
            return os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
    return None


def _package_folders() -> dict[str, str]:
    search = [entry for entry in sys.path if entry and os.path.isdir(entry)]
    found: dict[str, str] = {}
    for name in PACKAGES:
        spec = importlib.machinery.PathFinder.find_spec(name, search)
        if spec is not None and spec.origin and spec.submodule_search_locations:
            found[name] = os.path.realpath(os.path.dirname(spec.origin))
    return found


@cache
def readable() -> Readable:
    """For the interpreter that runs this process."""
    executable = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    standard = sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix})
    platform = sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix})
    shared = Path(
        sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "none"
    )
    dynload = sysconfig.get_config_var("DESTSHARED")
    # A self-contained interpreter (conda, uv) keeps libraries for its extension modules in its own
    # lib folder.
    private = None if sys.base_prefix in ("/usr", "/usr/local") else Path(sys.base_prefix, "lib")
    folders = _real(
        [standard, platform, dynload, shared, private, *_library_folders(), *_SYSTEM_FILES]
    )
    installed = [
        Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")
    ]
    beside = [
        match
        for folder in folders
        for name in ("site", "dist")
        for match in _packages_below(folder, name)
    ]
    ours = Path(__file__).resolve().parents[2]
    hidden = _real([*installed, *beside, ours])
    packages = _package_folders()
    libraries = _real(f"{folder}.libs" for folder in packages.values())
    return Readable(
        executable, os.path.realpath(standard), folders, hidden, packages, libraries, _loader()
    )


def _packages_below(folder: str, kind: str) -> list[Path]:
    return [*Path(folder).glob(f"{kind}-packages"), *Path(folder).glob(f"python*/{kind}-packages")]
