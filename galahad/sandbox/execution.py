"""Run one program in the sandbox: start the launcher, read its output with a deadline, make sure
that nothing is left.

It knows processes, pipes and limits. It does not know whether the program's output is right
(`verdict`), nor which mechanisms the host has (`capabilities`): it uses the ones it is given and
never fewer.
"""

from __future__ import annotations

import marshal
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from galahad.errors import SandboxUnavailable
from galahad.sandbox import seccomp
from galahad.sandbox.readable import DEVICES, Readable, readable
from taliesin.errors import UsageError

Level = Literal["full", "kernel", "weak"]
Identity = Literal["own", "unused", "unused-may-search"]
Status = Literal["ok", "error", "timeout", "killed", "output-limit", "file-limit"]

STDERR_TAIL_BYTES = 8192
_START_SECONDS = 30.0  # for the launcher, on a machine that is busy with a model
_DEATH_SECONDS = 5.0
# Where systemd takes identities for services that need one nobody else has; nothing is ever
# installed under these.
_UNUSED_UIDS = range(61184, 65520)
_INNER_SCRATCH = "/scratch"
_BOOTSTRAP = """
import marshal, sys
settings_at, control, status = map(int, sys.argv[1:])
with open(settings_at, "rb") as file:
    code, settings = marshal.load(file), marshal.load(file)
space = {"__name__": "launcher", "__builtins__": __builtins__}
exec(code, space)
space["main"](settings, control, status)
"""
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # sets in the same order each time: a verdict can be repeated
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",  # each arena takes 64 MiB of the address space that is limited
}
# No site, no user site, no folder of the program on the path, no bytecode written, unbuffered
# output (what was printed before os._exit or a kill is output), no limit on the digits of an
# integer (CPU time is limited already).
_PYTHON_FLAGS = ("-S", "-s", "-P", "-B", "-u", "-X", "utf8", "-X", "int_max_str_digits=0")


@dataclass(frozen=True)
class Limits:
    """What one program may use. `file_bytes` and `n_files` are for its private folder as a whole,
    `output_bytes` for stdout and stderr together, `n_processes` counts threads too, and
    `memory_bytes` is address space."""

    wall_seconds: float = 10.0
    cpu_seconds: int = 10
    memory_bytes: int = 1 << 30
    file_bytes: int = 16 << 20
    n_files: int = 1000
    n_processes: int = 64
    output_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise UsageError(
                    f"a sandbox limit must be positive: {name}", expected="> 0", got=value
                )


@dataclass(frozen=True)
class Mechanisms:
    """What isolates a program: a bubblewrap that has been seen to work (or None), the ABI of
    Landlock (0: none), a seccomp filter, and whose identity it runs under."""

    bubblewrap: str | None = None
    landlock_abi: int = 0
    seccomp: bool = False
    identity: Identity = "own"

    @property
    def level(self) -> Level:
        """`full`: namespaces, Landlock and seccomp. `kernel`: seccomp, and files confined by
        Landlock or by a mount
        namespace. `weak`: resource limits only; the program can read, write, connect and start what
        its user can."""
        if not self.seccomp or not (self.landlock_abi or self.bubblewrap):
            return "weak"
        return "full" if self.landlock_abi and self.bubblewrap else "kernel"

    def names(self) -> tuple[str, ...]:
        """For a record: which mechanisms a program ran under."""
        named = (
            "bubblewrap" if self.bubblewrap else "",
            f"landlock-{self.landlock_abi}" if self.landlock_abi else "",
            "seccomp" if self.seccomp else "",
            f"{self.identity}-uid",
            "rlimits",
        )
        return tuple(name for name in named if name)


@dataclass(frozen=True)
class Execution:
    """What a program did. `exit_code` is None when a signal ended it, `signal` None when none did.

    `status` says how it ended: "ok" (exit 0), "error" (another exit code), "timeout" (wall or CPU),
    "killed" (a signal that we did not send, as after a crash of the interpreter), "output-limit",
    "file-limit". `stdout` is what was printed up to the limit, `stderr` its last 8 KiB; both
    decoded as UTF-8 with replacement characters.
    """

    status: Status
    exit_code: int | None
    signal: int | None
    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    level: Level
    mechanisms: tuple[str, ...]


@cache
def _launcher_code() -> bytes:
    path = Path(__file__).with_name("launcher.py")
    return marshal.dumps(compile(path.read_bytes(), "launcher", "exec"))


@cache
def _filter() -> tuple[bytes, list[int]]:
    """The filter as bytes, and where in them the launcher puts the program's process id."""
    program = seccomp.filter_program(os.uname().machine)
    code = b"".join(
        operation.to_bytes(2, sys.byteorder)
        + bytes((jt, jf))
        + max(k, 0).to_bytes(4, sys.byteorder)
        for operation, jt, jf, k in program
    )
    return code, [8 * i + 4 for i, step in enumerate(program) if step.k == seccomp.OWN_PID]


def _unused_uid() -> int:
    import pwd

    while True:
        uid = secrets.choice(_UNUSED_UIDS)
        try:
            pwd.getpwuid(uid)
        except KeyError:
            return uid


def _bubblewrap(executable: str, allowed: Readable, limits: Limits, as_root: bool) -> list[str]:
    """The command line up to the command. The tree holds what is readable, nothing else; the
    program's folder is a file system of limited size. There is no /proc and no /dev/shm."""
    command = [
        executable,
        "--die-with-parent",
        "--new-session",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-net",
    ]
    command += ["--unshare-uts", "--unshare-cgroup-try"]
    if as_root:
        # Root needs no user namespace, and could not change to another uid in one. The capabilities
        # are the supervisor's: to change the program's identity, to kill it, to look into its
        # folder. The program keeps none.
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_DAC_READ_SEARCH"):
            command += ["--cap-add", capability]
    else:
        command += ["--unshare-user"]
    bound = (allowed.executable, *allowed.folders)
    within = (*allowed.packages.values(), *allowed.extras)
    # Folders on the way would get the mode of what is bound there, and be closed to another
    # identity.
    for parent in sorted(
        {str(parent) for path in (*bound, *within) for parent in Path(path).parents}
    ):
        command += ["--perms", "0755", "--dir", parent]
    for path in bound:
        command += ["--ro-bind", path, path]
    masks = [
        path
        for path in allowed.hidden
        if any(path.startswith(folder + "/") for folder in allowed.folders)
    ]
    for path in masks:
        command += ["--tmpfs", path]
    for path in within:
        command += ["--ro-bind", path, path]
    for path in masks:
        command += ["--remount-ro", path]
    for link in ("/lib", "/lib64"):
        if os.path.islink(link):
            command += ["--symlink", os.readlink(link), link]
    if allowed.loader:
        command += ["--ro-bind", allowed.loader, allowed.loader]
    for device in DEVICES:
        command += ["--dev-bind", device, device]
    command += ["--perms", "1777", "--size", str(limits.file_bytes), "--tmpfs", _INNER_SCRATCH]
    return [*command, "--remount-ro", "/", "--chdir", "/", "--"]


def run(
    source: str,
    *,
    stdin: str = "",
    limits: Limits = Limits(),
    allow_weak: bool = False,
    mechanisms: Mechanisms,
) -> Execution:
    """Run `source`, a Python program, and return what it did; whatever that is, it is a result and
    not an exception.

    It may import the standard library and those of `readable.PACKAGES` that are
    installed; its folder is private, empty and gone afterwards.

    Raises:
        SandboxUnavailable: the level would be `weak` and `allow_weak` is false, or the sandbox did
        not start.
    """
    if mechanisms.level == "weak" and not allow_weak:
        raise SandboxUnavailable(
            "this host cannot isolate a program",
            expected="seccomp, and Landlock or bubblewrap",
            got=", ".join(mechanisms.names()),
            hint="galahad doctor says what is missing; --allow-weak runs the program with "
            "resource limits only",
        )
    scratch = (
        _INNER_SCRATCH
        if mechanisms.bubblewrap
        else f"{tempfile.gettempdir()}/galahad-{secrets.token_hex(8)}"
    )
    settings = _settings(source.encode("utf-8", "surrogatepass"), scratch, limits, mechanisms)
    process, control, status = _start(settings, stdin, limits, mechanisms)
    watch = _Watch(process, control, status, limits)
    try:
        watch.follow()
    finally:
        watch.close()  # on Ctrl-C too: nobody leaves before the program is gone
        if not mechanisms.bubblewrap:
            _remove_leftover(scratch)
    return watch.execution(mechanisms)


def _remove_leftover(scratch: str) -> None:
    """Remove the private folder of a supervisor that was killed before it could; its program may
    take a moment to die.
    """
    if os.path.isdir(scratch):
        from galahad.sandbox import launcher

        for _ in range(50):
            with suppress(OSError):
                launcher.remove(scratch)
                return
            time.sleep(0.02)


def _other_tasks(inside: bool) -> int:
    """How many tasks RLIMIT_NPROC will count besides the program's, under an identity that is not
    its own: all of this user's, or since Linux 5.14 those of the user namespace (bubblewrap's two
    and the supervisor)."""
    if sys.platform != "linux":
        return 0
    if inside and tuple(map(int, re.findall("[0-9]+", os.uname().release)[:2])) >= (5, 14):
        return 3
    n_tasks, uid = 0, os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):  # it may end meanwhile
                if os.stat(f"/proc/{name}").st_uid == uid:
                    n_tasks += max(os.stat(f"/proc/{name}/task").st_nlink - 2, 1)
    return n_tasks


def _settings(
    source: bytes, scratch: str, limits: Limits, mechanisms: Mechanisms
) -> dict[str, object]:
    """What the launcher is told. The expected answer is not among it: the program could read it
    there.
    """
    allowed = readable()
    inside = mechanisms.bubblewrap is not None
    dropped = mechanisms.identity != "own"
    code, pid_offsets = _filter() if mechanisms.seccomp else (b"", [])
    return {
        "source": source,
        "packages": allowed.packages,
        "readable": allowed.paths(),
        "listed": allowed.standard_library,
        "devices": ["/dev/null"],
        "scratch": scratch,
        "makes_scratch": not inside,
        "uid": _unused_uid() if dropped else None,
        "may_search": mechanisms.identity == "unused-may-search",
        "landlock_abi": mechanisms.landlock_abi,
        "filter": code,
        "pid_offsets": pid_offsets,
        "is_linux": sys.platform == "linux",
        "cpu_seconds": limits.cpu_seconds,
        "memory_bytes": limits.memory_bytes,
        "file_bytes": limits.file_bytes,
        "n_files": limits.n_files,
        "n_tasks": limits.n_processes + (0 if dropped else _other_tasks(inside)),
    }


def _start(
    settings: dict[str, object], stdin: str, limits: Limits, mechanisms: Mechanisms
) -> tuple[subprocess.Popen[bytes], int, int]:
    """The launcher's process, our end of `control` and our end of `status`."""
    allowed = readable()
    command = [allowed.executable, *_PYTHON_FLAGS, "-c", _BOOTSTRAP]
    if mechanisms.bubblewrap:
        command = _bubblewrap(mechanisms.bubblewrap, allowed, limits, os.geteuid() == 0) + command
    their_control, control = os.pipe()
    status, their_status = os.pipe()
    try:
        with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as given:
            told.write(_launcher_code() + marshal.dumps(settings))
            told.seek(0)
            given.write(stdin.encode("utf-8", "surrogatepass"))
            given.seek(0)
            inherited = (told.fileno(), their_control, their_status)
            process = subprocess.Popen(
                [*command, *map(str, inherited)],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_ENVIRONMENT,
                cwd="/",
                pass_fds=inherited,
                start_new_session=True,
            )
    except OSError as error:
        os.close(control)
        os.close(status)
        raise SandboxUnavailable("the sandbox did not start", got=error) from error
    finally:
        os.close(their_control)
        os.close(their_status)
    return process, control, status


class _Watch:
    """Follows one launcher: collects output up to the limit, and asks for the program's end when
    time or output is up.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], control: int, status: int, limits: Limits
    ) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdout, self._stderr, self._status = (
            process.stdout.fileno(),
            process.stderr.fileno(),
            status,
        )
        self._control: int | None = control
        self._limits = limits
        self._deadline = time.monotonic() + _START_SECONDS
        self._ready: float | None = None
        self._ended: float | None = None
        self._reason: Status | None = None  # why we, or the supervisor, ended it
        self._messages = bytearray()
        self._failure = ""
        self._wait_status, self._cpu_seconds, self._peak_bytes = int(signal.SIGKILL), 0.0, 0
        self._output = {self._stdout: bytearray(), self._stderr: bytearray()}
        self._n_printed = {self._stdout: 0, self._stderr: 0}

    def follow(self) -> None:
        """Returns when the supervisor has said that nothing of the program is left.

        Raises:
            SandboxUnavailable: the program was never started.
        """
        poll = select.poll()
        for descriptor in (self._stdout, self._stderr, self._status):
            os.set_blocking(descriptor, False)
            poll.register(descriptor, select.POLLIN)
        while self._ended is None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                if self._control is None or self._ready is None:
                    # the supervisor does not answer: `close` kills it, and the kernel the program
                    # with it
                    break
                self._reason = self._reason or "timeout"
                self._stop()
                continue
            for descriptor, _ in poll.poll(left * 1000 + 1):
                chunk = _read(descriptor)
                if chunk == b"":
                    poll.unregister(descriptor)
                if descriptor == self._status:
                    self._hear(chunk)
                elif chunk:
                    self._collect(descriptor, chunk)
        if self._ready is None:
            self._control = self._close(self._control)
            raise SandboxUnavailable(
                "the sandbox did not start",
                got=self._failure or self._text(self._stderr).strip() or "no answer",
                hint="galahad doctor shows what this host can do",
            )
        # What was printed before the end may still be in the pipes; whoever else held them is dead.
        for descriptor in (self._stdout, self._stderr):
            while chunk := _read(descriptor):
                self._collect(descriptor, chunk)

    def close(self) -> None:
        self._control = self._close(self._control)
        try:
            self._process.wait(_DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._status)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def execution(self, mechanisms: Mechanisms) -> Execution:
        end = self._ended if self._ended is not None else time.monotonic()
        exit_code = os.waitstatus_to_exitcode(self._wait_status)
        return Execution(
            status=self._how(exit_code),
            exit_code=exit_code if exit_code >= 0 else None,
            signal=-exit_code if exit_code < 0 else None,
            stdout=self._text(self._stdout),
            stderr=self._text(self._stderr),
            stdout_truncated=self._n_printed[self._stdout] > len(self._output[self._stdout]),
            stderr_truncated=self._n_printed[self._stderr] > len(self._output[self._stderr]),
            wall_seconds=end - (self._ready or end),
            cpu_seconds=self._cpu_seconds,
            peak_bytes=self._peak_bytes,
            level=mechanisms.level,
            mechanisms=mechanisms.names(),
        )

    def _how(self, exit_code: int) -> Status:
        if self._reason == "output-limit":
            return "output-limit"
        if exit_code >= 0:  # it ended by itself, perhaps while we were about to end it
            return "ok" if exit_code == 0 else "error"
        if self._reason:
            return self._reason
        over_cpu = self._cpu_seconds >= self._limits.cpu_seconds
        return (
            "timeout"
            if -exit_code == signal.SIGXCPU or (-exit_code == signal.SIGKILL and over_cpu)
            else "killed"
        )

    def _stop(self) -> None:
        """Ask the supervisor to kill the program, once."""
        if self._control is not None:
            with suppress(BrokenPipeError):
                # the end of the pipe alone may not show: a fork of ours could hold it
                os.write(self._control, b"\n")
            self._control = self._close(self._control)
            self._deadline = time.monotonic() + _DEATH_SECONDS

    def _hear(self, chunk: bytes | None) -> None:
        now = time.monotonic()
        if chunk == b"":
            self._ended = now
        self._messages += chunk or b""
        while b"\n" in self._messages:
            line, _, rest = self._messages.partition(b"\n")
            self._messages = bytearray(rest)
            word, _, value = line.decode("utf-8", "replace").partition(" ")
            match word:
                case "ready":
                    self._ready, self._deadline = now, now + self._limits.wall_seconds
                case "failed":
                    self._failure = value
                case "limit":
                    self._reason = "file-limit"
                case "exit":
                    self._ended = now
                    wait_status, cpu_seconds, peak_bytes = value.split()
                    self._wait_status, self._cpu_seconds = int(wait_status), float(cpu_seconds)
                    self._peak_bytes = int(peak_bytes)

    def _collect(self, descriptor: int, chunk: bytes) -> None:
        self._n_printed[descriptor] += len(chunk)
        kept = self._output[descriptor]
        kept += chunk
        if descriptor == self._stderr:
            del kept[:-STDERR_TAIL_BYTES]
        else:
            del kept[self._limits.output_bytes :]
        if sum(self._n_printed.values()) > self._limits.output_bytes:
            self._reason = "output-limit"
            self._stop()

    def _text(self, descriptor: int) -> str:
        return self._output[descriptor].decode("utf-8", "replace")

    @staticmethod
    def _close(descriptor: int | None) -> None:
        if descriptor is not None:
            os.close(descriptor)


def _read(descriptor: int) -> bytes | None:
    """Up to 64 KiB, b"" at the end, None when there is nothing now."""
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return None
