#!/usr/bin/env python3
"""Make the environment of a checkout: `.venv`, the pinned llama-cpp-python, and on request the
matching llama-server.

    python3 scripts/bootstrap.py                 .venv with everything that `make demo` and `make
                                                 test` need
    python3 scripts/bootstrap.py --extras test,hub
    python3 scripts/bootstrap.py --wheel FILE    take a finished llama-cpp-python wheel instead of
                                                 building one
    python3 scripts/bootstrap.py server          build llama-server of the same llama.cpp; its path
                                                 on stdout

Promises: a finished environment is recognised by its stamp, so that a second call takes no time and
no network; a build (minutes) happens once per machine and is kept under the cache folder, keyed by
everything that goes into it; nothing appears under its final name before it is whole; two calls at
once do not meet. Standard library only, because it runs
before anything is installed. It deliberately names no package index: pip's own configuration
decides.

Environment: TALIESIN_CACHE (cache folder), TALIESIN_CMAKE_ARGS (more CMake options for both builds,
for example `-DGGML_CUDA=ON`; other options are other builds and lie beside these).

Exit codes: 0 done, 2 usage, 30 the environment cannot be built here, 130 interrupted.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

CHECKOUT = Path(__file__).resolve().parent.parent

# GGML_NATIVE=OFF: a native build faults in AMX tile code on some hosts, and its bits are those of
# one CPU model; without it blocks move between x86-64-v3 machines (docs/exactness.md). The image
# library is of no use here.
WHEEL_CMAKE_ARGS = ["-DGGML_NATIVE=OFF", "-DLLAVA_BUILD=OFF"]
# Static, so that one file is the whole server. The web interface would be fetched from the network
# during the build.
SERVER_CMAKE_ARGS = [
    "-DGGML_NATIVE=OFF",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
]
# Per release of llama-cpp-python: SHA-256 of its source package and the llama.cpp commit in it.
RELEASES = {
    "0.3.36": ("832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e", "0c1e570")
}

OLDEST_PYTHON = (3, 11)
OLDEST_CMAKE = (3, 21)
BUILD_BYTES = 2_000_000_000  # a build tree has 0.6 to 1.2 GB at its largest
REPORT_SECONDS = 60.0
EXIT_CANNOT_BUILD = 30


class BootstrapError(Exception):
    """What is missing or failed, and what to do about it."""


def note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


# --- places and keys ------------------------------------------------------------------------------


def cache_dir(env: Mapping[str, str] = os.environ) -> Path:
    """The folder that `taliesin.host.places.cache_dir` names too."""
    if env.get("TALIESIN_CACHE"):
        return Path(env["TALIESIN_CACHE"]).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "taliesin"
    # The base directory specification says to ignore a relative XDG_CACHE_HOME.
    named = Path(env.get("XDG_CACHE_HOME") or "")
    return (named if named.is_absolute() else Path.home() / ".cache") / "taliesin"


def pyproject(checkout: Path) -> dict[str, Any]:
    import tomllib  # not at the top: an older Python must get as far as the message that says so

    return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))


def pinned_version(checkout: Path) -> str:
    """The version of llama-cpp-python that pyproject.toml pins: the one place that says it."""
    for requirement in pyproject(checkout)["project"]["dependencies"]:
        found = re.fullmatch(
            r"llama-cpp-python==([0-9][0-9A-Za-z.]*)", requirement.replace(" ", "")
        )
        if found:
            return found[1]
    raise BootstrapError("pyproject.toml pins no llama-cpp-python")


def release(version: str) -> tuple[str, str]:
    if version not in RELEASES:
        raise BootstrapError(
            f"scripts/bootstrap.py knows no hash for llama-cpp-python {version}: add it to RELEASES"
        )
    return RELEASES[version]


@dataclasses.dataclass(frozen=True)
class Build:
    """Everything that decides what a build is; written as build.json beside the result."""

    llama_cpp_python: str
    llama_cpp_commit: str
    cmake_args: tuple[str, ...]
    compiler_flags: tuple[str, ...]  # of the environment
    python: str
    system: str
    machine: str
    libc: str

    @property
    def key(self) -> str:
        return hashlib.sha256(self.record().encode()).hexdigest()[:16]

    def record(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n"


def build_of(
    version: str, cmake_args: Sequence[str], *, python: bool, env: Mapping[str, str] = os.environ
) -> Build:
    """The build that this machine would make; `python`: whether the result is for one Python
    version.
    """
    return Build(
        llama_cpp_python=version,
        llama_cpp_commit=release(version)[1],
        cmake_args=(*cmake_args, *shlex.split(env.get("TALIESIN_CMAKE_ARGS", ""))),
        compiler_flags=tuple(
            f"{name}={env[name]}" for name in ("CFLAGS", "CXXFLAGS", "LDFLAGS") if env.get(name)
        ),
        python=f"cp{sys.version_info.major}{sys.version_info.minor}" if python else "",
        system=platform.system(),
        machine=platform.machine(),
        libc="-".join(platform.libc_ver()),
    )


def wheel_build(version: str) -> Build:
    return build_of(version, WHEEL_CMAKE_ARGS, python=True)


def server_build(version: str) -> Build:
    return build_of(version, SERVER_CMAKE_ARGS, python=False)


# --- files ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the kernel drops it with the process, so a crash leaves
    nothing to clear.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"another process works on {what}; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def staging(parent: Path) -> Iterator[Path]:
    """A folder in `parent`, so on its file system; gone afterwards. Call with the lock of `parent`
    held.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(".staging-*"):  # of a killed run: we hold the lock, so nobody uses it
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=".staging-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(source: Path, target: Path) -> None:
    """Give a finished file its name: bytes first, then the name, then the folder."""
    with source.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(source, target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_text(text: str, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    publish(temporary, target)


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def need_space(folder: Path, n_bytes: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise BootstrapError(
            f"{what} needs {n_bytes / 1e9:.1f} GB in {folder}; {free / 1e9:.1f} GB are free"
        )


# --- running --------------------------------------------------------------------------------------


def progress_of(line: str) -> str | None:
    """How far a line of CMake, Make or Ninja says it is: `43%`."""
    percent = re.match(r"\s*\[\s*(\d{1,3})%\]", line)
    if percent:
        return f"{int(percent[1])}%"
    steps = re.match(r"\s*\[(\d+)/(\d+)\]", line)
    return f"{100 * int(steps[1]) // max(int(steps[2]), 1)}%" if steps else None


def run_logged(
    argv: Sequence[object],
    label: str,
    log: Path,
    *,
    cwd: Path,
    env: Mapping[str, str],
    hint: str = "",
) -> None:
    """Run `argv` with its output in `log`; say every minute how far it is, on a terminal every
    second in one line.

    Raises BootstrapError with the last lines of the log, which is kept, and `hint`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    on_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    started, reached, done = time.monotonic(), "", threading.Event()
    tail: collections.deque[str] = collections.deque(maxlen=30)

    def report() -> None:
        while not done.wait(1.0 if on_terminal else REPORT_SECONDS):
            minutes, seconds = divmod(int(time.monotonic() - started), 60)
            line = f"{label}: {minutes}:{seconds:02d} min{', ' + reached if reached else ''}"
            print(
                f"\r{line}\x1b[K" if on_terminal else line,
                end="" if on_terminal else "\n",
                file=sys.stderr,
                flush=True,
            )

    note(f"{label} (log: {log})")
    with (
        log.open("w", encoding="utf-8") as stream,
        subprocess.Popen(
            [str(part) for part in argv],
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # so that an interrupt ends the compilers too, not only their parent
            start_new_session=True,
        ) as process,
    ):
        reporter = threading.Thread(target=report, daemon=True)
        reporter.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                stream.write(line)
                # a compiler's command line has thousands of characters
                tail.append(line.rstrip()[:200])
                reached = progress_of(line) or reached
            code = process.wait()
        finally:
            done.set()
            reporter.join()
            if on_terminal:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
    if code:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed (exit {code})"
        said = [f"{label} {how}; its last lines:", *tail, f"whole log: {log}"]
        raise BootstrapError("\n".join([*said, f"  try: {hint}"] if hint else said))
    minutes, seconds = divmod(int(time.monotonic() - started), 60)
    note(f"{label}: done in {minutes}:{seconds:02d} min")


def install_command(package: Mapping[str, str]) -> str:
    """The command that installs a system package here, by the package manager that is there."""
    for manager, verb in (
        ("apt-get", "install -y"),
        ("dnf", "install -y"),
        ("pacman", "-S"),
        ("apk", "add"),
        ("brew", "install"),
    ):
        if shutil.which(manager):
            sudo = "" if manager == "brew" or os.geteuid() == 0 else "sudo "
            return f"{sudo}{manager} {verb} {package.get(manager, package['other'])}"
    return f"install {package['other']} with your system's package manager"


def need_compiler(env: Mapping[str, str] = os.environ) -> None:
    c = env.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "")
    cxx = env.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), "")
    if not (c and cxx):
        names = {
            "apt-get": "build-essential",
            "dnf": "gcc-c++ make",
            "pacman": "base-devel",
            "apk": "build-base",
            "brew": "llvm",
        }
        raise BootstrapError(
            "llama.cpp is built from source and no C and C++ compiler was found.\n"
            f"  try: {install_command({**names, 'other': 'a C++ compiler'})}"
        )


def need_cmake(venv_bin: Path) -> str:
    """A CMake that is new enough: the system's, or one that was put into `.venv`."""
    for candidate in (shutil.which("cmake"), shutil.which("cmake", path=str(venv_bin))):
        if candidate:
            text = subprocess.run(
                [candidate, "--version"], capture_output=True, text=True, check=False
            ).stdout
            found = re.search(r"version (\d+)\.(\d+)", text)
            if found and (int(found[1]), int(found[2])) >= OLDEST_CMAKE:
                return candidate
    raise BootstrapError(
        f"llama-server is built with CMake {'.'.join(map(str, OLDEST_CMAKE))} or newer and none "
        f"was found.\n"
        f"  try: {install_command({'other': 'cmake'})}\n"
        f"  or:  {venv_bin / 'python'} -m pip install cmake"
    )


# --- the source package, the wheel, the server ----------------------------------------------------


def source_package(version: str, python: Path, cache: Path) -> Path:
    """llama-cpp-python's source package, its hash checked; fetched by pip once, shared by the wheel
    and the server.
    """
    expected = release(version)[0]
    folder = cache / "sources"
    target = folder / f"llama_cpp_python-{version}.tar.gz"
    with locked(cache / "locks" / "sources.lock", "the source package"):
        if target.is_file() and sha256_of(target) == expected:
            return target
        with staging(folder) as stage:
            pip_download = [
                python,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--no-binary",
                "llama-cpp-python",
            ]
            run_logged(
                [*pip_download, "--dest", stage, f"llama-cpp-python=={version}"],
                f"fetching the source package of llama-cpp-python {version}",
                cache / "logs" / "source.log",
                cwd=stage,
                env=os.environ,
                hint="this step needs the package index that pip is set up for, once",
            )
            got = next(stage.glob("*.tar.gz"), None)
            if got is None or sha256_of(got) != expected:
                raise BootstrapError(
                    f"the package index has another source package of llama-cpp-python {version} "
                    f"than ours\n"
                    f"  expected SHA-256: {expected}\n  got: "
                    f"{sha256_of(got) if got else 'no .tar.gz'}"
                )
            publish(got, target)
    return target


def cached_wheel(version: str, cache: Path) -> Path | None:
    """The wheel that an earlier call left for this machine."""
    folder = cache / "wheels" / wheel_build(version).key
    return next((path for path in sorted(folder.glob("*.whl")) if is_wheel(path, version)), None)


def cached_server(version: str, cache: Path) -> Path | None:
    path = cache / "server" / server_build(version).key / "llama-server"
    return path if path.is_file() and os.access(path, os.X_OK) else None


def is_wheel(path: Path, version: str) -> bool:
    """Whether `path` is a whole wheel of that version with the shared library in it."""
    if not path.name.startswith(f"llama_cpp_python-{version}-"):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.startswith("llama_cpp/lib/") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def wheel(version: str, python: Path, cache: Path, given: Path | None = None) -> Path:
    """The llama-cpp-python wheel of this machine: `given`, else the cached one, else built now
    (minutes).
    """
    build = wheel_build(version)
    folder = cache / "wheels" / build.key
    with locked(cache / "locks" / f"wheel-{build.key}.lock", "the llama-cpp-python build"):
        if given is not None and not is_wheel(given, version):
            raise BootstrapError(f"{given} is no wheel of llama-cpp-python {version}")
        if given is None and (found := cached_wheel(version, cache)):
            return found
        with staging(folder) as stage:
            if given is not None:
                built = stage / given.name
                shutil.copyfile(given, built)
            else:
                need_compiler()
                need_space(Path(tempfile.gettempdir()), BUILD_BYTES, "building llama.cpp")
                archive = source_package(version, python, cache)
                # pip keeps the wheels it built by source alone, whatever CMAKE_ARGS was: never take
                # one of those.
                run_logged(
                    [
                        python,
                        "-m",
                        "pip",
                        "wheel",
                        "-v",
                        "--no-deps",
                        "--no-cache-dir",
                        "--wheel-dir",
                        stage,
                        archive,
                    ],
                    f"building llama-cpp-python {version} from source, once per machine, about 8 "
                    f"minutes on 2 cores",
                    cache / "logs" / "wheel.log",
                    cwd=stage,
                    env={**os.environ, "CMAKE_ARGS": shlex.join(build.cmake_args)},
                )
                built = next(iter(stage.glob("*.whl")), stage / "none")
            if not is_wheel(built, version):
                raise BootstrapError(f"the build left no whole wheel of llama-cpp-python {version}")
            publish_text(build.record(), folder / "build.json")
            for old in folder.glob("*.whl"):
                old.unlink()
            publish(built, folder / built.name)
            return folder / built.name


def server(version: str, cache: Path, python: Path, venv_bin: Path) -> Path:
    """llama-server of the llama.cpp that the wheel has, as one static file (about 6 minutes on 2
    cores).
    """
    build = server_build(version)
    folder = cache / "server" / build.key
    target = folder / "llama-server"
    with locked(cache / "locks" / f"server-{build.key}.lock", "the llama-server build"):
        if found := cached_server(version, cache):
            return found
        need_compiler()
        cmake = need_cmake(venv_bin)
        archive = source_package(version, python, cache)
        with staging(folder) as stage:
            need_space(stage, BUILD_BYTES, "building llama-server")
            prefix = f"llama_cpp_python-{version}/vendor/llama.cpp/"
            with tarfile.open(archive) as tar:
                wanted = [member for member in tar if member.name.startswith(prefix)]
                # Early releases of 3.11 have no filter; the archive is safe without it, because its
                # hash is pinned.
                tar.extraction_filter = getattr(
                    tarfile, "data_filter", lambda member, _path: member
                )
                tar.extractall(stage, members=wanted)
            # Git would look upwards from the build and stamp it with whatever checkout it meets.
            env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(stage)}
            tree = stage / "build"
            commit = f"-DLLAMA_BUILD_COMMIT={build.llama_cpp_commit}"
            run_logged(
                [cmake, "-S", stage / prefix, "-B", tree, *build.cmake_args, commit],
                "configuring llama-server",
                cache / "logs" / "server-configure.log",
                cwd=stage,
                env=env,
            )
            run_logged(
                [
                    cmake,
                    "--build",
                    tree,
                    "--target",
                    "llama-server",
                    "--parallel",
                    str(os.cpu_count() or 2),
                ],
                "building llama-server, once per machine, about 6 minutes on 2 cores",
                cache / "logs" / "server-build.log",
                cwd=stage,
                env=env,
            )
            built = tree / "bin" / "llama-server"
            probe = subprocess.run(
                [built, "--version"], capture_output=True, text=True, check=False
            )
            if probe.returncode:
                raise BootstrapError(
                    f"the llama-server that was built does not start: {probe.stderr.strip()[-300:]}"
                )
            publish_text(build.record(), folder / "build.json")
            publish(built, target)
    return target


# --- the environment ------------------------------------------------------------------------------


def ensure_venv(checkout: Path, wheel_key: str, *, renew: bool) -> Path:
    """The interpreter of `.venv`, which is made anew when it is of another Python, another place or
    another build.

    pip would keep an installed llama-cpp-python of the same version, and a moved checkout has
    scripts and an editable install that point to the old place.
    """
    venv = checkout / ".venv"
    python = venv / "bin" / "python"
    origin = {"python": sys.version, "checkout": str(checkout), "wheel": wheel_key}
    record = venv / "taliesin-origin.json"
    if not renew:
        with contextlib.suppress(OSError, ValueError):
            if (
                json.loads(record.read_text(encoding="utf-8")) == origin
                and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode
                == 0
            ):
                return python
    note(f"making {venv} with Python {platform.python_version()}")
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", venv], capture_output=True, text=True, check=False
    )
    if made.returncode:
        package = {"apt-get": "python3-venv", "other": "Python's venv module"}
        raise BootstrapError(
            f"python3 -m venv failed: {(made.stdout + made.stderr).strip()[-500:]}\n  try: "
            f"{install_command(package)}"
        )
    publish_text(json.dumps(origin), record)
    return python


def environment_stamp(checkout: Path, extras: Sequence[str]) -> str:
    """A hash of everything that decides what is installed: not of tool settings, whose change needs
    no install.
    """
    project = pyproject(checkout)
    parts = {
        "project": project["project"],
        "build": [project.get("build-system"), project.get("tool", {}).get("hatch")],
        "constraints": (checkout / "constraints.txt").read_text(encoding="utf-8"),
        "extras": sorted(extras),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def venv_locked(checkout: Path, cache: Path) -> Iterator[None]:
    place = hashlib.sha256(str(checkout).encode()).hexdigest()[:16]
    with locked(cache / "locks" / f"venv-{place}.lock", str(checkout / ".venv")):
        yield


def environment(
    checkout: Path, cache: Path, extras: Sequence[str], given: Path | None = None
) -> Path:
    """The interpreter of a `.venv` that has the pinned llama-cpp-python, this checkout (editable)
    and `extras`.
    """
    version = pinned_version(checkout)
    with venv_locked(checkout, cache):
        python = ensure_venv(checkout, wheel_build(version).key, renew=given is not None)
        stamp = environment_stamp(checkout, extras)
        stamp_file = checkout / ".venv" / "taliesin-stamp"
        with contextlib.suppress(FileNotFoundError):
            if stamp_file.read_text(encoding="utf-8") == stamp:
                return python
        stamp_file.unlink(missing_ok=True)
        built = wheel(version, python, cache, given)
        target = f".[{','.join(sorted(extras))}]" if extras else "."
        run_logged(
            [
                python,
                "-m",
                "pip",
                "install",
                "--constraint",
                "constraints.txt",
                built,
                "--editable",
                target,
            ],
            "installing the packages of constraints.txt",
            cache / "logs" / "install.log",
            cwd=checkout,
            env=os.environ,
            hint="this step needs the package index that pip is set up for, once",
        )
        load = "import llama_cpp; print(llama_cpp.__version__)"
        probe = subprocess.run([python, "-c", load], capture_output=True, text=True, check=False)
        if probe.returncode or probe.stdout.strip() != version:
            raise BootstrapError(
                f"the installed llama-cpp-python does not load: "
                f"{probe.stderr.strip()[-500:] or probe.stdout.strip()}\n"
                f"  try: remove {built.parent} and run this again, which builds it anew"
            )
        publish_text(stamp, stamp_file)
    return python


def _terminated(_signum: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def run(what: str, extras: Sequence[str], given: Path | None) -> Path:
    """The path that `what` names: the interpreter of the environment, the wheel, or
    llama-server.
    """
    cache = cache_dir()
    if what == "environment":
        return environment(CHECKOUT, cache, extras, given)
    version = pinned_version(CHECKOUT)
    found = cached_wheel(version, cache) if what == "wheel" else cached_server(version, cache)
    if found and given is None:
        return found
    with venv_locked(CHECKOUT, cache):  # for its pip, which the system's Python may lack
        python = ensure_venv(CHECKOUT, wheel_build(version).key, renew=False)
    return (
        wheel(version, python, cache, given)
        if what == "wheel"
        else server(version, cache, python, python.parent)
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "what", nargs="?", choices=("environment", "wheel", "server"), default="environment"
    )
    parser.add_argument(
        "--extras", default="test", help="comma-separated extras of pyproject.toml (default: test)"
    )
    parser.add_argument(
        "--wheel",
        type=Path,
        help="a finished llama-cpp-python wheel to use instead of building one",
    )
    options = parser.parse_args(argv)
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        note(f"error: Python {oldest} or newer is needed; this is {platform.python_version()}")
        note(f"  try: make PYTHON=python{oldest} ...")
        return EXIT_CANNOT_BUILD
    signal.signal(signal.SIGTERM, _terminated)
    try:
        path = run(
            options.what,
            [extra.strip() for extra in options.extras.split(",") if extra.strip()],
            options.wheel.absolute() if options.wheel else None,
        )
        if options.what != "environment":
            print(path)
    except (BootstrapError, OSError) as error:
        note(f"error: {error}")
        return EXIT_CANNOT_BUILD
    except KeyboardInterrupt:
        note("interrupted")
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
