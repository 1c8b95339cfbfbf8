"""A llama-server process: started with the options that exactness needs, found again, stopped.

What is promised: a server that `start` made listens on 127.0.0.1 with a key, keeps its slot files
in a folder of its own, reads no LLAMA_ARG_* of the caller, and is identified by process id *and*
start time before anything is sent to it. What this module does not know: blocks, libraries, and
which slot holds what (`slots`).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import ClassVar

from taliesin.engine import recipe as recipes
from taliesin.engine.llama import SUPPORTED_VERSION
from taliesin.errors import EngineUnavailable, ServerError, UsageError
from taliesin.host import console, durable, records
from taliesin.models import resolve as models
from taliesin.server.client import Client
from taliesin.server.options import COMMIT, Options

_RECORD = "server.json"
_SLOTS = "slots"
_LOG = "server.log"
_START_SECONDS = 600.0
_STOP_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_PRIVATE = "taliesin-server-"
_OWNED = "owner.lock"
_SWEPT_AFTER = 60.0  # seconds since something was put into the folder

_TICKS_A_SECOND = 100  # of a process's start time, in Linux and in the record

_detached: list[subprocess.Popen[bytes]] = []


# -- the binary ------------------------------------------------------------------------------------


def find_binary(given: Path | None = None, variables: Mapping[str, str] = os.environ) -> Path:
    """llama-server: `given`, TALIESIN_LLAMA_SERVER, or what `make server` left in the cache.

    Raises:
        EngineUnavailable: none, or the named one is not executable.
    """
    named = given or (
        Path(variables["TALIESIN_LLAMA_SERVER"]) if variables.get("TALIESIN_LLAMA_SERVER") else None
    )
    if named is not None:
        if not (named.is_file() and os.access(named, os.X_OK)):
            raise EngineUnavailable("not an executable llama-server", where=named)
        return named.absolute()
    for folder in sorted((models.cache_dir() / "server").glob("*")):
        binary = folder / "llama-server"
        if os.access(binary, os.X_OK) and _built_for_here(folder / "build.json"):
            return binary
    raise EngineUnavailable(
        "no llama-server of this llama.cpp was found",
        expected=f"commit {COMMIT}, the one of llama-cpp-python {SUPPORTED_VERSION}",
        hint="make server, or name one with TALIESIN_LLAMA_SERVER or --server-bin",
    )


def _built_for_here(record: Path) -> bool:
    try:
        build = json.loads(record.read_text(encoding="utf-8"))
        return bool(
            build["llama_cpp_python"] == SUPPORTED_VERSION
            and build["machine"] == platform.machine()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


# -- the process -----------------------------------------------------------------------------------


@dataclass
class Server:
    """A llama-server that answers.

    slot_folder: its `--slot-save-path`; options: what it was started with, None for one that others
    started; pid: of a process that we started; environment: variables it was started with that may
    change numbers.
    """

    url: str
    slot_folder: Path
    options: Options | None = None
    _: KW_ONLY
    key: str | None = None
    model: Path | None = None
    binary: Path | None = None
    pid: int | None = None
    born: str = ""
    log: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    client: Client = field(init=False, repr=False)
    _process: subprocess.Popen[bytes] | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self.client = Client(self.url, self.key)

    @property
    def alive(self) -> bool:
        """Whether the process that we started is still that process."""
        if self._process is not None:
            return self._process.poll() is None
        return self.pid is not None and bool(self.born) and birth(self.pid) == self.born

    def instruction_set(self) -> str | None:
        """The compiled-in features as the server's own log names them, in `llama.build_info`'s
        form; None if unknown.
        """
        for line in self.log_lines():
            _, found, text = line.partition("system_info: ")
            if found:
                parts = text.split("|")[1:]
                return " ".join(
                    sorted({" ".join(p.split()).replace(" = ", "=") for p in parts if p.strip()})
                )
        return None

    def log_lines(self) -> list[str]:
        if self.log is None:
            return []
        try:
            return self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []

    def stop(self) -> None:
        """End the process, politely first, and wait until it is gone."""
        import psutil

        self.client.close()
        if self.pid is None or not self.alive:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
                process = psutil.Process(self.pid)
                process.send_signal(number)
                if self._process is not None:  # ours: it must be reaped where its exit code is kept
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(_STOP_SECONDS)
                else:
                    process.wait(_STOP_SECONDS)
            if not self.alive:
                return
        raise ServerError("llama-server does not end", where=f"process {self.pid}")

    def record(self) -> ServerRecord:
        """What finds this server again. It holds the key, so it belongs in a file that only its
        owner reads.
        """
        assert self.options is not None
        return ServerRecord(
            url=self.url,
            slot_folder=str(self.slot_folder),
            options=self.options,
            key=self.key,
            model=str(self.model),
            binary=str(self.binary),
            pid=self.pid,
            born=self.born,
            log=str(self.log),
            environment=self.environment,
        )


class ServerRecord(records.Record):
    """`server.json`: what finds a server again that `taliesin server start` made. Holds its key."""

    SCHEMA: ClassVar[str] = "taliesin.server/1"

    url: str
    slot_folder: str
    options: Options
    key: str | None
    model: str
    binary: str
    pid: int | None
    born: str
    log: str
    environment: dict[str, str]

    def server(self) -> Server:
        """The server that the record names."""
        return Server(
            self.url,
            Path(self.slot_folder),
            self.options,
            key=self.key,
            model=Path(self.model),
            binary=Path(self.binary),
            pid=self.pid,
            born=self.born,
            log=Path(self.log),
            environment=self.environment,
        )


def birth(pid: int) -> str:
    """When a process began, in ticks since the machine started, which tells it from a later one
    with the same id; empty when there is none, or only its exit code is left.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        # Both follow the system's clock; their difference does not.
        return str(round((process.create_time() - psutil.boot_time()) * _TICKS_A_SECOND))
    except psutil.Error:
        return ""


def run_folder() -> Path:
    """Where the server that `taliesin server start` made is remembered: TALIESIN_SERVER_RUN, else
    in the cache folder.
    """
    named = os.environ.get("TALIESIN_SERVER_RUN")
    return Path(named).expanduser().absolute() if named else models.cache_dir() / "server-run"


def launch(
    model: Path,
    options: Options,
    folder: Path,
    *,
    binary: Path | None = None,
    port: int = 0,
    detached: bool = False,
    arguments: Sequence[str] = (),
) -> Server:
    """Start a llama-server in `folder` (created, private) and wait until it is healthy.

    Args:
        detached: it outlives this process, and its record lies in `folder`; otherwise it ends with
        it (on Linux, however it ends).
        arguments: more of the command line, for measurements; nothing here knows what they do to
        exactness.

    Raises:
        EngineUnavailable: no binary. ServerError: it ended, or did not become healthy; with the end
        of its log.
    """
    program = find_binary(binary)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    slot_folder = folder / _SLOTS
    slot_folder.mkdir(exist_ok=True, mode=0o700)
    for left in slot_folder.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()
    key, log = secrets.token_hex(16), folder / _LOG
    key_file = folder / "key"
    durable.write(key_file, key.encode())
    port = port or _free_port()
    command = [
        str(program),
        *("--model", str(model), "--host", "127.0.0.1", "--port", str(port)),
        *("--api-key-file", str(key_file), "--slot-save-path", f"{slot_folder}/"),
        *("--no-ui", "--slots", "--offline", "--no-warmup", "--log-verbosity", "4"),
        *options.arguments(),
        *arguments,
    ]
    # Its own options are said on the command line; ours must not come in by the way.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=detached,
            preexec_fn=None if detached or sys.platform != "linux" else _end_with_parent,  # noqa: PLW1509
        )
    finally:
        os.close(descriptor)
    server = Server(
        f"http://127.0.0.1:{port}",
        slot_folder,
        options,
        key=key,
        model=model,
        binary=program,
        pid=process.pid,
        born=birth(process.pid),
        log=log,
        environment=recipes.environment(environment),
    )
    try:
        if detached:
            _detached.append(process)  # a Popen that is collected while its process runs complains
            # Before it is healthy, which takes minutes with a large model: one that outlives a
            # killed `start` is found again.
            durable.write(folder / _RECORD, json.dumps(records.plain(server.record())).encode())
        else:
            server._process = process
        _await_health(server, process)
    except BaseException:
        server.stop()
        if detached:
            (folder / _RECORD).unlink(missing_ok=True)
        raise
    return server


def _end_with_parent() -> None:
    """In the child, before exec: the kernel ends it when the parent goes, whatever ended the
    parent.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_health(server: Server, process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait for a server of ours; `process` is there to ask for its exit code where this process
    started it.
    """
    deadline = time.monotonic() + _START_SECONDS
    while not server.client.healthy():
        if not server.alive:
            code = f"exit code {process.wait()}; " if process else ""
            raise ServerError(
                "llama-server ended while it started",
                got=code + (" / ".join(server.log_lines()[-3:]) or "nothing in its log"),
                where=server.log,
            )
        if time.monotonic() > deadline:
            raise ServerError(
                "llama-server did not become healthy",
                expected=f"within {_START_SECONDS:.0f} s",
                where=server.log,
            )
        time.sleep(0.05)


# -- the one that stays ----------------------------------------------------------------------------


def running(folder: Path | None = None) -> Server | None:
    """The server that `start` left, if its process is still there."""
    path = (folder or run_folder()) / _RECORD
    what, hint = "the record of the server", "remove it"
    try:
        record = records.read(path, ServerRecord, what=what, error=ServerError, hint=hint)
    except FileNotFoundError:
        return None
    except (OSError, UsageError) as error:  # UsageError: options that cannot be ones
        raise ServerError(f"{what} cannot be read", got=error, where=path, hint=hint) from error
    server = record.server()
    return server if server.alive else None


def start(
    model: Path,
    options: Options,
    *,
    folder: Path | None = None,
    binary: Path | None = None,
    port: int = 0,
) -> Server:
    """Start the server that stays until `stop`; the running one if it has these options.

    Raises:
        UsageError: one with other options, or another model, is running.
    """
    from filelock import FileLock

    place = folder or run_folder()
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(place / "start.lock", mode=0o600):
        held = running(place)
        if held is not None:
            if held.options == options and held.model == model:
                _await_health(held)
                return held
            raise UsageError(
                "a server with other options is running",
                expected=f"{options} {model}",
                got=f"{held.options} {held.model}",
                where=held.url,
                hint="taliesin server stop",
            )
        return launch(model, options, place, binary=binary, port=port, detached=True)


def stop(folder: Path | None = None) -> bool:
    """End the server that `start` left; whether there was one."""
    place = folder or run_folder()
    server = running(place)
    if server is not None:
        server.stop()
        for left in server.slot_folder.glob("*"):
            left.unlink(missing_ok=True)
    (place / _RECORD).unlink(missing_ok=True)
    return server is not None


def attach(url: str, slot_folder: Path, key: str | None = None) -> Server:
    """A server that others started. Its options cannot be asked over HTTP, so nothing it computes
    is called exact.

    Raises:
        ServerError: it does not answer. UsageError: `slot_folder` is no folder, or `url` no
        address.
    """
    if not re.match(r"https?://", url):
        raise UsageError("not a server address", expected="http://HOST:PORT", got=url)
    if not slot_folder.is_dir():
        raise UsageError(
            "the server's slot folder is not there", where=slot_folder, hint="its --slot-save-path"
        )
    server = Server(url.rstrip("/"), slot_folder, key=key)
    server.client.call("GET", "/health")
    return server


def _sweep(place: Path) -> None:
    """Remove what private servers left whose process was killed: folders of ours whose lock nobody
    holds.
    """
    from filelock import FileLock, Timeout

    for folder in place.glob(f"{_PRIVATE}*"):
        with contextlib.suppress(OSError, Timeout):
            held = folder.lstat()
            # Not one that was just made and is not locked yet.
            if (
                held.st_uid != os.getuid()
                or not stat.S_ISDIR(held.st_mode)
                or time.time() - held.st_mtime < _SWEPT_AFTER
            ):
                continue
            with FileLock(folder / _OWNED, timeout=0, mode=0o600):
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def private(model: Path, options: Options, binary: Path | None = None) -> Iterator[Server]:
    """A server for this process alone, in a folder that goes with it."""
    import tempfile

    from filelock import FileLock

    _sweep(Path(tempfile.gettempdir()))
    with (
        tempfile.TemporaryDirectory(prefix=_PRIVATE) as folder,
        FileLock(Path(folder) / _OWNED, mode=0o600),
    ):
        console.note(
            f"starting llama-server for {model.name}; taliesin server start keeps one between "
            "commands"
        )
        server = launch(model, options, Path(folder), binary=binary)
        try:
            yield server
        finally:
            server.stop()
