"""A llama-server process and its HTTP API: started with the options that exactness needs, found
again, stopped, asked.

What is promised: a server that `start` made listens on 127.0.0.1 with a key, keeps its slot files
in a folder of its own, reads no LLAMA_ARG_* of the caller, and is identified by process id *and*
start time before anything is sent to it. What this module does not
know: blocks, libraries, and which slot holds what (`slots`).
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
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from taliesin.engine import recipe as fingerprint
from taliesin.engine.llama import KV_TYPES, SUPPORTED_VERSION, Sampling
from taliesin.errors import EngineUnavailable, ServerError, UsageError
from taliesin.host import console, durable
from taliesin.models import resolve as models

COMMIT = "0c1e570"
"""The llama.cpp commit of the pinned llama-cpp-python: the only one whose slot files and reuse
rules are known here.
"""

N_PROBS = 64
"""How many log-probabilities of a step are compared: the best ones, with all digits that
llama-server prints.
"""

MAX_SLOTS = 256
"""LLAMA_MAX_SEQ of llama.cpp."""

_NAME = re.compile(r"[0-9a-f]{1,64}")
_RECORD = "server.json"
_SLOTS = "slots"
_LOG = "server.log"
_START_SECONDS = 600.0
_STOP_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_PRIVATE = "taliesin-server-"
_OWNED = "owner.lock"
_SWEPT_AFTER = 60.0  # seconds since something was put into the folder

_detached: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Options:
    """What a llama-server computes with. The defaults are the ones that were measured exact
    (docs/server.md).

    n_ctx: tokens of one slot; n_slots: slots, each with a cache stream of its own unless
    `kv_unified`.
    """

    n_slots: int = 1
    n_ctx: int = 4096
    n_ubatch: int = 512
    n_threads: int = 2
    flash_attn: bool = True
    type_k: str = "f16"
    type_v: str = "f16"
    gpu_layers: int = 0
    swa_full: bool = False
    kv_unified: bool = False
    slot_prompt_similarity: float = 0.0
    cache_ram_mib: int = 0
    ctx_checkpoints: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("n_slots", 1, MAX_SLOTS),
            ("n_ctx", 256, 1 << 24),
            ("n_ubatch", 1, 1 << 16),
            ("n_threads", 1, 512),
        ):
            if not low <= getattr(self, name) <= high:
                raise UsageError(
                    f"{name} is out of range", expected=f"{low}..{high}", got=getattr(self, name)
                )
        for name in ("type_k", "type_v"):
            if getattr(self, name) not in KV_TYPES:
                raise UsageError(
                    f"unknown KV cache type {name}",
                    expected=", ".join(KV_TYPES),
                    got=getattr(self, name),
                )

    def arguments(self) -> list[str]:
        """The command line that says this to llama-server."""
        cells = self.n_ctx if self.kv_unified else self.n_ctx * self.n_slots
        flag = {True: "on", False: "off"}
        return [
            *("--parallel", str(self.n_slots), "--ctx-size", str(cells)),
            *("--batch-size", str(self.n_ubatch), "--ubatch-size", str(self.n_ubatch)),
            *("--threads", str(self.n_threads), "--threads-batch", str(self.n_threads)),
            *(
                "--flash-attn",
                flag[self.flash_attn],
                "--cache-type-k",
                self.type_k,
                "--cache-type-v",
                self.type_v,
            ),
            *("--n-gpu-layers", str(self.gpu_layers), "--fit", "off"),
            "--kv-unified" if self.kv_unified else "--no-kv-unified",
            *(["--swa-full"] if self.swa_full else []),
            *("--slot-prompt-similarity", str(self.slot_prompt_similarity)),
            *(
                "--cache-ram",
                str(self.cache_ram_mib),
                "--ctx-checkpoints",
                str(self.ctx_checkpoints),
            ),
            *([] if self.cache_ram_mib else ["--no-cache-idle-slots"]),
        ]

    def n_stream(self) -> int:
        """Streams of the server's KV cache, which its slot files repeat."""
        return 1 if self.kv_unified else self.n_slots

    def inexact(self) -> list[str]:
        """Why an answer of this server may not be called exact; empty for the options that were
        measured exact.
        """
        return fingerprint.server_inexactness(
            n_slots=self.n_slots,
            kv_unified=self.kv_unified,
            slot_prompt_similarity=self.slot_prompt_similarity,
            cache_ram_mib=self.cache_ram_mib,
            ctx_checkpoints=self.ctx_checkpoints,
        )


class Completion(NamedTuple):
    """One answer of `/completion`.

    logprobs: per token the best (id, log-probability) pairs, empty unless asked for; cache_n:
    prompt tokens that were reused;
    prompt_n: those that were evaluated; seconds are the server's own.
    """

    text: str
    tokens: list[int]
    logprobs: list[tuple[tuple[int, float], ...]]
    cache_n: int
    prompt_n: int
    prompt_seconds: float
    predict_seconds: float
    stopped_by: str


class Refused(ServerError):
    """llama-server answered a request with an error; `status` is HTTP's."""

    def __init__(self, status: int, said: object, where: object) -> None:
        super().__init__("llama-server refused a request", got=f"{status}: {said}", where=where)
        self.status = status


class Client:
    """The part of llama-server's HTTP API that is used here, with our exceptions.

    Raises:
        UsageError (here): `url` or `key` cannot be ones.
        ServerError (every method): not reachable, or it refused; with what it said.
    """

    def __init__(self, url: str, key: str | None = None, seconds: float = 3600.0) -> None:
        self.url = url.rstrip("/")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UsageError(
                "not a server's key", expected="printable ASCII characters", where="--server-key"
            )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            # trust_env=False: a proxy variable must not send prompts elsewhere.
            self.http = httpx.Client(
                base_url=self.url,
                headers=headers,
                timeout=httpx.Timeout(seconds, connect=5.0),
                limits=httpx.Limits(
                    max_keepalive_connections=0
                ),  # a server that was started anew is not met on an old socket
                trust_env=False,
            )
        except httpx.InvalidURL as error:
            raise UsageError(
                "not a server address", expected="http://HOST:PORT", got=f"{url}: {error}"
            ) from error

    def close(self) -> None:
        self.http.close()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        try:
            response = self.http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise self._gone(error) from error
        return self.checked(response)

    def checked(self, response: httpx.Response) -> Any:
        """The JSON of a good response."""
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.status_code != 200:
            said = answer.get("error", answer) if isinstance(answer, dict) else response.text[:300]
            message = said.get("message", said) if isinstance(said, dict) else said
            raise Refused(response.status_code, message, response.request.url)
        if answer is None:
            raise ServerError(
                "llama-server sent something that is not JSON", where=response.request.url
            )
        return answer

    def _gone(self, error: Exception) -> ServerError:
        return ServerError(
            "llama-server does not answer",
            got=f"{type(error).__name__}: {error}" if str(error) else type(error).__name__,
            where=self.url,
            hint="taliesin server status",
        )

    def healthy(self) -> bool:
        try:
            return self.http.get("/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def props(self) -> dict[str, Any]:
        answer = self.call("GET", "/props")
        if not isinstance(answer, dict):
            raise ServerError("llama-server's /props is not an object", where=self.url)
        return answer

    def complete(
        self,
        tokens: Sequence[int],
        n_predict: int,
        slot: int,
        *,
        n_probs: int = 0,
        sampling: Sampling | None = None,
        ignore_eos: bool = False,
    ) -> Completion:
        """Continue `tokens` (ids) in slot `slot`; `n_predict` 0 only evaluates them. Greedy unless
        `sampling` says otherwise.
        """
        body = self.completion_body(tokens, n_predict, slot, sampling)
        answer = self.call(
            "POST", "/completion", {**body, "n_probs": n_probs, "ignore_eos": ignore_eos}
        )
        try:
            timings = answer["timings"]
            steps = answer.get("completion_probabilities", [])
            return Completion(
                answer["content"],
                answer["tokens"],
                [tuple((p["id"], p["logprob"]) for p in step["top_logprobs"]) for step in steps],
                timings["cache_n"],
                timings["prompt_n"],
                timings["prompt_ms"] / 1e3,
                timings["predicted_ms"] / 1e3,
                answer.get("stop_type", ""),
            )
        except (KeyError, TypeError) as error:
            raise ServerError(
                "llama-server's answer lacks a field",
                got=error,
                where=self.url,
                hint="this needs the build of make server",
            ) from error

    def completion_body(
        self, tokens: Sequence[int], n_predict: int, slot: int, sampling: Sampling | None = None
    ) -> dict[str, Any]:
        """The JSON of a `/completion` request that is pinned to a slot and may reuse what the slot
        holds.
        """
        wanted = sampling or Sampling()
        chain = (
            ["temperature"]
            if wanted.temperature <= 0
            else ["top_k", "top_p", "min_p", "temperature"]
        )
        return {
            "prompt": list(tokens),
            "n_predict": n_predict,
            "id_slot": slot,
            "cache_prompt": True,
            "return_tokens": True,
            # Named one by one: a model file may carry sampling defaults of its own.
            "samplers": chain,
            "temperature": max(wanted.temperature, 0.0),
            "top_k": wanted.top_k,
            "top_p": wanted.top_p,
            "min_p": wanted.min_p,
            "seed": wanted.seed,
            **({"grammar": wanted.grammar} if wanted.grammar else {}),
        }

    def save_slot(self, slot: int, name: str) -> int:
        """Save a slot into the server's folder under `name`; tokens saved. An empty slot is never
        saved: it crashes readers.
        """
        return int(
            self.call("POST", f"/slots/{slot}?action=save", {"filename": checked_name(name)})[
                "n_saved"
            ]
        )

    def restore_slot(self, slot: int, name: str) -> int:
        """Restore a file of the server's folder; tokens restored, which says nothing about their
        being used.
        """
        return int(
            self.call("POST", f"/slots/{slot}?action=restore", {"filename": checked_name(name)})[
                "n_restored"
            ]
        )

    def erase_slot(self, slot: int) -> None:
        self.call("POST", f"/slots/{slot}?action=erase", {})


def checked_name(name: str) -> str:
    """`name`, if it is one to send to a server: hexadecimal digits and nothing that could be a
    path.
    """
    if not _NAME.fullmatch(name):
        raise UsageError("not a slot file name", expected="hexadecimal digits", got=repr(name))
    return name


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
        self.client.close()
        if self.pid is None or not self.alive:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            deadline = time.monotonic() + _STOP_SECONDS
            while self.alive and time.monotonic() < deadline:
                time.sleep(0.02)
            if not self.alive:
                return
        raise ServerError("llama-server does not end", where=f"process {self.pid}")

    def record(self) -> dict[str, Any]:
        """What finds this server again, JSON-ready; holds the key, so it belongs in a file that
        only its owner reads.
        """
        plain = {
            f.name: getattr(self, f.name) for f in fields(self) if f.init and f.name != "options"
        }
        return {
            **{k: str(v) if isinstance(v, Path) else v for k, v in plain.items()},
            "options": asdict(self.options) if self.options else None,
        }


def birth(pid: int) -> str:
    """When a process began, in a form that tells it from a later one with the same id; empty when
    there is none.
    """
    try:
        status = (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="ascii", errors="replace")
            .rpartition(")")[2]
            .split()
        )
        return "" if status[0] == "Z" else status[19]
    except OSError:
        pass
    if sys.platform == "linux":
        return ""
    done = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


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
        key,
        model,
        program,
        process.pid,
        birth(process.pid),
        log,
        fingerprint.environment(environment),
    )
    try:
        if detached:
            _detached.append(process)  # a Popen that is collected while its process runs complains
            # Before it is healthy, which takes minutes with a large model: one that outlives a
            # killed `start` is found again.
            durable.write(folder / _RECORD, json.dumps(server.record()).encode())
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
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ServerError(
            "the record of the server cannot be read", got=error, where=path, hint="remove it"
        ) from error
    try:
        paths = {name: Path(found.pop(name)) for name in ("slot_folder", "model", "binary", "log")}
        known: dict[str, Any] = {**found, **paths, "options": Options(**found["options"])}
        server = Server(**known)
    except (KeyError, TypeError, AttributeError, UsageError) as error:
        raise ServerError(
            "the record of the server is malformed", got=error, where=path, hint="remove it"
        ) from error
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
