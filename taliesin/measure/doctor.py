"""What this machine has for the toolkit, what it lacks, and the command that mends each lack.

Looks and never changes anything. A finding is `needed` when `taliesin save` with the default model
cannot run without it;
everything else is told and does not count against the machine. It deliberately decodes nothing:
whether grafts are exact here is `taliesin verify`.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Literal

from taliesin import __version__
from taliesin.errors import TaliesinError
from taliesin.host.console import human_bytes
from taliesin.host.machine import usable_cores
from taliesin.models import catalogue
from taliesin.models import resolve as models

OLDEST_PYTHON = (3, 11)
# The default model's weights (100 MB), a context of 4,096 tokens (95 MB) and compute buffers, with
# room for Python.
NEEDED_MEMORY_BYTES = 600_000_000
NEEDED_DISK_BYTES = 300_000_000
CHECKOUT_HINT = "in a checkout: make env"

State = Literal["ok", "missing", "wrong", "unknown"]


@dataclass(frozen=True)
class Finding:
    """One line of the report. `mend` is a command, given when the state is not `ok`."""

    topic: str
    what: str
    state: State
    found: str
    needed: bool = False
    mend: str | None = None


def examine(library: Path | None = None, *, rehash: bool = False) -> list[Finding]:
    """Everything that is looked at, in the order of the report.

    `library` is the folder of blocks (None: the user's own); `rehash` hashes every model file anew.

    Raises:
        ModelError: the catalogue has a fault.
    """
    return [
        *_python(),
        *_engine(),
        *_machine(),
        *_folders(library),
        *_models(rehash),
        *_server(),
        *_build_tools(),
        *_extras(),
    ]


def able(findings: list[Finding]) -> bool:
    """Whether the default job can run."""
    return all(finding.state == "ok" or not finding.needed for finding in findings)


def _python() -> Iterator[Finding]:
    recent = sys.version_info >= OLDEST_PYTHON
    yield Finding(
        "python",
        "Python",
        "ok" if recent else "wrong",
        f"{platform.python_version()}, {sys.executable}",
        needed=True,
        mend=None if recent else "make PYTHON=python3.11 env",
    )
    yield Finding("python", "taliesin", "ok", f"{__version__}, {Path(__file__).parents[1]}")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _engine() -> Iterator[Finding]:
    try:
        from taliesin.engine import llama

        info = llama.build_info()
    except (TaliesinError, ImportError) as error:
        found = str(error.got if isinstance(error, TaliesinError) and error.got else error)
        state: State = "missing" if _version("llama-cpp-python") == "not installed" else "wrong"
        yield Finding("engine", "llama-cpp-python", state, found, needed=True, mend=CHECKOUT_HINT)
        return
    yield Finding(
        "engine",
        "llama-cpp-python",
        "ok",
        f"{info['llama_cpp_python']}, the pinned version",
        needed=True,
    )
    features = str(info["instruction_set"])
    if native := re.findall(r"\b(?:AMX_\w+|AVX512\w*)=1", features):
        # Seen on hosts with AMX: such a build faults at the first matrix product.
        yield Finding(
            "engine",
            "instruction set",
            "wrong",
            f"built for one CPU model ({', '.join(native)}): its blocks are exact on such CPUs "
            "only",
            mend=f"build with GGML_NATIVE=OFF ({CHECKOUT_HINT})",
        )
    else:
        yield Finding("engine", "instruction set", "ok", features)
    gpu = (
        "a GPU backend is built in"
        if info["supports_gpu"]
        else "CPU only: no GPU backend is built in"
    )
    yield Finding("engine", "devices", "ok", "; ".join([gpu, *_gpus()]))


def _gpus() -> list[str]:
    """Names and memory of NVIDIA GPUs, where nvidia-ml-py (the `energy` extra) and a driver are
    there.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    # not installed, no driver, a driver of another version: all mean that none can be named
    except Exception:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [
            f"{pynvml.nvmlDeviceGetName(h)}, {human_bytes(pynvml.nvmlDeviceGetMemoryInfo(h).total)}"
            for h in handles
        ]
    except pynvml.NVMLError as error:
        return [f"GPUs cannot be asked: {error}"]
    finally:
        pynvml.nvmlShutdown()


def _machine() -> Iterator[Finding]:
    yield Finding(
        "machine",
        "processor",
        "ok",
        f"{_processor()}, {usable_cores()} of {os.cpu_count()} cores usable",
    )
    free = available_memory()
    if free is None:
        yield Finding("machine", "free memory", "unknown", "cannot be read on this system")
        return
    enough = free >= NEEDED_MEMORY_BYTES
    yield Finding(
        "machine",
        "free memory",
        "ok" if enough else "missing",
        human_bytes(free),
        needed=True,
        mend=None
        if enough
        else "free memory: the default model and its context take "
        f"{human_bytes(NEEDED_MEMORY_BYTES)}",
    )


def _processor() -> str:
    try:
        found = re.search(
            r"^model name\s*:\s*(.+)$",
            Path("/proc/cpuinfo").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    except OSError:
        found = None
    return f"{found[1]} ({platform.machine()})" if found else platform.machine()


def available_memory() -> int | None:
    """Bytes that can be allocated without swapping: MemAvailable, or the control group's room where
    that is less.
    """
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    if not found:
        return None
    free = int(found[1]) * 1024
    try:
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        if limit != "max":
            free = min(
                free, int(limit) - int((group / "memory.current").read_text(encoding="ascii"))
            )
    except (OSError, ValueError):
        pass
    return max(free, 0)


def _folders(library: Path | None) -> Iterator[Finding]:
    from taliesin.store.library import default_path

    default = models.entry(models.DEFAULT)
    getting = 0 if default.path.is_file() else 2 * default.n_bytes
    for what, folder, variable in (
        ("library", library or default_path(), "--library or TALIESIN_LIBRARY"),
        ("models", models.models_dir(), "TALIESIN_MODELS"),
        ("cache", models.cache_dir(), "TALIESIN_CACHE"),
    ):
        ground = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(ground).free
        need = NEEDED_DISK_BYTES + (getting if what == "models" else 0)
        state: State = "ok"
        found = f"{folder}: {human_bytes(_size(folder))}, {human_bytes(free)} free"
        mend = None
        if not ground.is_dir() or not os.access(ground, os.W_OK | os.X_OK):
            state, found, mend = (
                "wrong",
                f"{folder}: cannot be written",
                f"name another folder with {variable}",
            )
        elif free < need:
            state, mend = (
                "missing",
                f"free {human_bytes(need)}, or name a folder on another disk with {variable}",
            )
        yield Finding("folders", what, state, found, needed=True, mend=mend)
    for build in sorted((models.cache_dir() / "wheels").glob("*/build.json")):
        wheel = next(iter(sorted(build.parent.glob("*.whl"))), None)
        if wheel:
            yield Finding(
                "folders", "built wheel", "ok", f"{wheel}, {human_bytes(wheel.stat().st_size)}"
            )


def _size(folder: Path) -> int:
    total = 0
    for parent, _folders, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:  # gone meanwhile
                continue
    return total


def _models(rehash: bool) -> Iterator[Finding]:
    for known in catalogue.catalogue():
        needed = known.name == models.DEFAULT
        mend = f"taliesin model pull {known.name}"
        if not known.path.is_file():
            yield Finding(
                "models",
                known.name,
                "missing",
                f"{human_bytes(known.n_bytes)} to get",
                needed,
                mend,
            )
            continue
        if rehash:
            result = models.verify(known)
            status, got = result.status, result.got
        elif known.path.stat().st_size != known.n_bytes:
            status, got = "wrong size", f"{known.path.stat().st_size} bytes"
        else:
            got = models.remembered_sha256(known.path) or ""
            status = "ok" if got in ("", known.sha256) else "wrong hash"
        if status == "ok":
            checked = "SHA-256 right" if got else "SHA-256 not checked (--hash does)"
            yield Finding(
                "models", known.name, "ok", f"{human_bytes(known.n_bytes)}, {checked}", needed
            )
        else:
            yield Finding(
                "models", known.name, "wrong", f"{status}: {got}, {known.path}", needed, mend
            )


def _server() -> Iterator[Finding]:
    path, source = find_server()
    if path is None:
        yield Finding(
            "server", "llama-server", "missing", "only for --engine server", mend="make server"
        )
        return
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
        said = next(
            (
                line
                for line in (done.stderr + done.stdout).splitlines()
                if line.startswith("version")
            ),
            "",
        )
        runs = done.returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        said, runs = str(error), False
    if runs:
        yield Finding(
            "server", "llama-server", "ok", f"{path} ({source}), {said or 'version unknown'}"
        )
    else:
        yield Finding(
            "server",
            "llama-server",
            "wrong",
            f"{path} ({source}) does not start: {said}",
            mend="make server",
        )


def find_server() -> tuple[Path | None, str]:
    """llama-server and how it was found: TALIESIN_LLAMA_SERVER, what `make server` built for this
    version, the PATH.
    """
    named = os.environ.get("TALIESIN_LLAMA_SERVER")
    if named:
        return Path(named).expanduser().absolute(), "TALIESIN_LLAMA_SERVER"
    for build in sorted((models.cache_dir() / "server").glob("*/build.json")):
        try:
            version = json.loads(build.read_text(encoding="utf-8"))["llama_cpp_python"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        path = build.parent / "llama-server"
        if version == _version("llama-cpp-python") and os.access(path, os.X_OK):
            return path, "built by make server"
    on_path = shutil.which("llama-server")
    return (
        (Path(on_path), "on the PATH: its build is another than the embedded engine's")
        if on_path
        else (None, "")
    )


def _build_tools() -> Iterator[Finding]:
    for what, names, package in (
        ("C++ compiler", ("c++", "g++", "clang++"), "build-essential"),
        ("CMake", ("cmake",), "cmake"),
    ):
        found = next((path for name in names if (path := shutil.which(name))), None)
        if found:
            yield Finding("build", what, "ok", found)
        else:
            yield Finding(
                "build",
                what,
                "missing",
                "only to build",
                mend=f"apt-get install {package}, or your system's",
            )


def _extras() -> Iterator[Finding]:
    modules = {
        "hub": "huggingface_hub",
        "plots": "matplotlib",
        "energy": "pynvml",
        "data": "pyarrow",
    }
    there = [extra for extra, module in modules.items() if util.find_spec(module)]
    missing = [extra for extra in modules if extra not in there]
    yield Finding(
        "extras",
        "optional packages",
        "missing" if missing else "ok",
        f"have: {', '.join(there) or 'none'}; not: {', '.join(missing) or 'none'}",
        mend=f"in a checkout: python3 scripts/bootstrap.py --extras test,{','.join(missing)}"
        if missing
        else None,
    )
