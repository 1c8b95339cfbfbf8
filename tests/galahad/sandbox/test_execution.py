"""The sandbox's own promises: what a result says, what survives, what two programs share, and what
a filter lets through.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galahad.errors import SandboxUnavailable
from galahad.sandbox import (
    Limits,
    Mechanisms,
    capabilities,
    execution,
    launcher,
    probe,
    program_answer,
    run,
    seccomp,
    verify,
)
from galahad.sandbox.readable import PACKAGES, Readable, readable
from galahad.sandbox.seccomp import OWN_PID, Instruction
from taliesin.errors import UsageError

_WEAK = Mechanisms()


@pytest.fixture(scope="module", params=["full", "kernel"])
def mechanisms(request: pytest.FixtureRequest) -> Mechanisms:
    found = probe(use_bubblewrap=request.param == "full")
    if found.level != request.param:
        pytest.skip(f"level {request.param} is not to be had here")
    return found.mechanisms


# --- the answer and the verdict


@pytest.mark.parametrize(
    ("stdout", "answer"),
    [
        ("204", 204),
        ("204\n", 204),
        ("working...\n204\n\n \n", 204),
        ("  204  \r\n", 204),
        ("+204", 204),
        ("-7", -7),
        ("000", 0),
        ("007", 7),
        ("204.0", 204),
        ("204.000", 204),
        ("204.5", None),
        ("204.", None),
        ("408/2", None),
        ("2e2", None),
        ("1,204", None),
        ("[204]", None),
        ("Answer: 204", None),
        ("204 apples", None),
        ("204\nTrue", None),
        ("٢٠٤", None),  # digits, but not ASCII
        ("２０４", None),
        ("2_04", None),
        ("0x10", None),
        ("--7", None),
        ("nan", None),
        ("", None),
        ("\n\n", None),
        ("0" * 5000 + "204", 204),
        ("9" * 640, int("9" * 640)),
        ("9" * 641, None),
        ("9" * 5000, None),
    ],
)
def test_the_answer_is_the_last_line_and_must_be_one_integer(
    stdout: str, answer: int | None
) -> None:
    assert program_answer(stdout) == answer


@given(
    st.integers(-(10**30), 10**30),
    st.lists(st.text()),
    st.sampled_from(["", "\n", "\n\n", " \r\n"]),
)
def test_any_printed_integer_is_read_back(number: int, before: list[str], after: str) -> None:
    assert program_answer("\n".join([*before, str(number)]) + after) == number


@given(st.text())
def test_reading_an_answer_never_raises(stdout: str) -> None:
    assert isinstance(program_answer(stdout), int | None)


@pytest.mark.parametrize(
    ("program", "verdict", "cause", "answer"),
    [
        ("print(204)", "verified", "answer", 204),
        ("print(203)", "refuted", "answer", 203),
        ("print(204.0)", "verified", "answer", 204),
        ("print(204); 1/0", "not-established", "program-error", None),
        ("print(204); raise SystemExit(1)", "not-established", "program-error", None),
        ("print(204); import os; os.abort()", "not-established", "crash", None),
        ("print('about 204')", "not-established", "no-integer", None),
        ("print('204 + 0')", "not-established", "no-integer", None),
        ("pass", "not-established", "no-output", None),
        ("print(10**5000)", "not-established", "too-long", None),
        ("print(204", "not-established", "program-error", None),
        ("\0", "not-established", "program-error", None),
        ("print('\udc80')", "not-established", "program-error", None),
        # A very common failure of generated programs: the wrong pow. The program is at fault, not
        # its answer.
        ("from math import *\nprint(pow(2, 3, 5))", "not-established", "program-error", None),
        ("import sys; sys.exit(0 if print(204) is None else 1)", "verified", "answer", 204),
    ],
)
def test_verdict(program: str, verdict: str, cause: str, answer: int | None) -> None:
    judged = verify(program, 204)
    assert (judged.verdict, judged.cause, judged.answer) == (verdict, cause, answer), judged
    assert judged.execution.level == probe().level
    assert judged.execution.mechanisms == probe().mechanisms.names()


def test_without_an_expected_answer_any_integer_is_established() -> None:
    assert verify("print(17)").verdict == "verified"
    assert verify("print('seventeen')").verdict == "not-established"


def test_an_answer_printed_before_a_timeout_establishes_nothing() -> None:
    judged = verify("print(204)\nwhile True: pass", 204, limits=Limits(wall_seconds=0.5))
    assert (judged.verdict, judged.cause, judged.execution.stdout) == (
        "not-established",
        "timeout",
        "204\n",
    )


def test_an_answer_in_cut_output_establishes_nothing() -> None:
    judged = verify("print(204)\n" * 100, 204, limits=Limits(output_bytes=100))
    assert (judged.verdict, judged.cause) == ("not-established", "output-limit")
    assert judged.execution.stdout_truncated
    assert len(judged.execution.stdout) == 100


def test_detail_of_a_verdict_holds_no_control_characters() -> None:
    for program in (r"print('\x1b[31m\x07')", r"raise ValueError('\x1b]0;title\x07')"):
        assert verify(program, 204).detail.isprintable()


def test_the_program_never_sees_the_expected_answer() -> None:
    program = """
import gc
wanted = str(int("918273640") + 5)
held = [o for o in gc.get_objects() if isinstance(o, (dict, list, tuple)) and o is not globals()]
print(sum(wanted in repr(o) for o in held))
"""
    assert verify(program, 918273645).answer == 0


# --- what an execution reports


def test_traceback_starts_in_the_program_and_shows_its_line(mechanisms: Mechanisms) -> None:
    done = run("def f(n):\n    return n / 0\nf(1)", mechanisms=mechanisms)
    lines = done.stderr.splitlines()
    assert (done.status, done.exit_code) == ("error", 1)
    assert lines[1] == '  File "program.py", line 3, in <module>'
    assert any("return n / 0" in line for line in lines)
    assert "launcher" not in done.stderr


def test_stdin_reaches_the_program(mechanisms: Mechanisms) -> None:
    text = "größer\n" * 50_000  # more than a pipe holds
    assert (
        run("import sys; print(len(sys.stdin.read()))", stdin=text, mechanisms=mechanisms).stdout
        == f"{len(text)}\n"
    )


def test_exit_code_and_signal_are_told_apart(mechanisms: Mechanisms) -> None:
    ended = run("import os; os._exit(134)", mechanisms=mechanisms)
    crashed = run("import os; os.abort()", mechanisms=mechanisms)
    assert (ended.status, ended.exit_code, ended.signal) == ("error", 134, None)
    assert (crashed.status, crashed.exit_code, crashed.signal) == ("killed", None, signal.SIGABRT)


def test_cpu_time_is_limited_also_for_who_ignores_the_signal(mechanisms: Mechanisms) -> None:
    program = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    done = run(program, limits=Limits(wall_seconds=60, cpu_seconds=1), mechanisms=mechanisms)
    assert done.status == "timeout"
    assert done.cpu_seconds >= 1


def test_stderr_keeps_its_end(mechanisms: Mechanisms) -> None:
    done = run("import sys\nsys.stderr.write('x' * 20000 + 'end')", mechanisms=mechanisms)
    assert done.stderr.endswith("xend")
    assert (len(done.stderr), done.stderr_truncated, done.stdout_truncated) == (8192, True, False)


def test_sets_are_in_the_same_order_each_time(mechanisms: Mechanisms) -> None:
    program = "print(list({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}))"
    assert run(program, mechanisms=mechanisms).stdout == run(program, mechanisms=mechanisms).stdout


def test_main_guard_and_dataclasses_work(mechanisms: Mechanisms) -> None:
    program = """
from __future__ import annotations
from dataclasses import dataclass
import pickle
@dataclass
class Point:
    x: int
if __name__ == "__main__":
    print(pickle.loads(pickle.dumps(Point(204))).x)
"""
    done = run(program, mechanisms=mechanisms)
    assert done.stdout == "204\n", done.stderr


def test_limits_must_be_positive() -> None:
    for wrong in ({"wall_seconds": 0}, {"memory_bytes": -1}, {"wall_seconds": float("nan")}):
        with pytest.raises(UsageError):
            Limits(**wrong)


# --- refusing


def test_weak_is_refused_unless_allowed(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable) as refused:
        run("print(204)", mechanisms=_WEAK)
    assert "--allow-weak" in str(refused.value)
    done = run("print(204)", mechanisms=_WEAK, allow_weak=True)
    assert (done.stdout, done.level) == ("204\n", "weak")


@pytest.mark.parametrize(
    ("mechanisms", "level"),
    [
        (Mechanisms("/usr/bin/bwrap", 1, True), "full"),
        (Mechanisms(None, 1, True), "kernel"),
        (Mechanisms("/usr/bin/bwrap", 0, True), "kernel"),
        (Mechanisms(None, 0, True), "weak"),
        (Mechanisms("/usr/bin/bwrap", 7, False), "weak"),
        (Mechanisms(None, 7, False), "weak"),
    ],
)
def test_level_of_mechanisms(mechanisms: Mechanisms, level: str) -> None:
    assert mechanisms.level == level


def test_a_wrapper_that_fails_is_an_error_and_not_a_weaker_run(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(SandboxUnavailable) as failed:
        run("print(204)", mechanisms=Mechanisms(str(broken), 1, True))
    assert "Permission denied" in str(failed.value)


def test_probe_passes_over_a_wrapper_that_does_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on desktops where bubblewrap is installed and may not make namespaces."""
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted' "
        ">&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setattr(capabilities.shutil, "which", lambda _name: str(broken))
    found = capabilities.probe.__wrapped__()
    assert found.mechanisms == probe(use_bubblewrap=False).mechanisms
    assert any("RTM_NEWADDR" in failure for failure in found.failures)
    assert any("apparmor_restrict_unprivileged_userns" in line for line in found.advice())


def test_host_without_kernel_support_reaches_only_weak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "landlock_abi", lambda: 0)
    monkeypatch.setattr(capabilities, "has_seccomp", lambda: False)
    found = capabilities.probe.__wrapped__()
    assert found.level == "weak"
    assert [line.partition(":")[0] for line in found.advice()][:2] == [
        "Landlock",
        "seccomp filters",
    ]


def test_landlock_alone_before_later_abis_still_runs() -> None:
    """Kernels from 5.13 on: fewer rights to deny, the same program."""
    abi = capabilities.landlock_abi()
    if not abi or not capabilities.has_seccomp():
        pytest.skip("no Landlock or no seccomp here")
    for older in range(1, abi):
        done = run("print(204)\nopen('/etc/passwd')", mechanisms=Mechanisms(None, older, True))
        assert (done.stdout, done.status) == ("204\n", "error"), done.stderr
        assert "PermissionError" in done.stderr


def test_setup_that_fails_never_runs_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # not a filter: the kernel refuses it
    monkeypatch.setattr(execution, "_filter", lambda: (b"\xff" * 8, []))
    with pytest.raises(SandboxUnavailable) as failed:
        run("print(204)", mechanisms=Mechanisms(None, 0, True), allow_weak=True)
    assert "seccomp" in str(failed.value)


# --- nothing survives, nothing is shared


def _parents() -> dict[int, int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except OSError:
                continue
    return parents


def _descendants(pid: int) -> set[int]:
    parents = _parents()
    found: set[int] = set()
    more = {pid}
    while more:
        more = {child for child, parent in parents.items() if parent in more} - found
        found |= more
    return found


def _alive(pids: set[int]) -> set[int]:
    """Those that still run; a zombie that nobody has reaped yet does not."""
    running = set()
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                running.add(pid)
        except OSError:
            continue
    return running


_HANG = "import os, time\nopen('mark', 'w').close()\ntime.sleep(600)"
_HANG_WITH_GRANDCHILDREN = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
time.sleep(600)
"""


def _wait_until(condition, seconds: float = 20.0) -> bool:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("level", ["full", "kernel", "weak"])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_tool_itself_is_killed(
    level: str, signum: signal.Signals, tmp_path: Path
) -> None:
    chosen = _WEAK if level == "weak" else probe(use_bubblewrap=level == "full").mechanisms
    if chosen.level != level:
        pytest.skip(f"level {level} is not to be had here")
    hang = _HANG_WITH_GRANDCHILDREN if level == "weak" else _HANG
    tool = (
        f"from galahad.sandbox import *\nrun({hang!r}, limits=Limits(wall_seconds=600), "
        f"mechanisms={chosen!r}, allow_weak=True)"
    )
    tmp_path.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-c", tool],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])},
        stderr=subprocess.DEVNULL,
    )
    # The supervisor and the program, at least; three grandchildren under `weak`, two processes of
    # bubblewrap.
    n_expected = {"full": 4, "kernel": 2, "weak": 5}[level]
    try:
        assert _wait_until(lambda: len(_alive(_descendants(process.pid))) >= n_expected)
        started = _descendants(process.pid)
        process.send_signal(signum)
        process.wait()
        assert _wait_until(lambda: not _alive(started))
        assert _wait_until(lambda: not list(tmp_path.iterdir()))
    finally:
        process.kill()


def test_grandchildren_do_not_outlive_a_weak_run(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    program = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            with open({str(tmp_path / "alive")!r}, "a") as file:
                file.write("x")
            time.sleep(0.01)
    os._exit(0)
time.sleep(0.3)
print(204)
"""
    done = run(program, mechanisms=_WEAK, allow_weak=True)
    assert done.stdout == "204\n", done.stderr
    size = (tmp_path / "alive").stat().st_size
    time.sleep(0.1)
    assert (tmp_path / "alive").stat().st_size == size


def test_the_program_dies_with_its_supervisor(
    mechanisms: Mechanisms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ThreadPoolExecutor(1) as pool:
        before = _descendants(os.getpid())
        running = pool.submit(run, _HANG, limits=Limits(wall_seconds=600), mechanisms=mechanisms)
        n_expected = 4 if mechanisms.bubblewrap else 2
        assert _wait_until(lambda: len(_alive(_descendants(os.getpid()) - before)) >= n_expected)
        started = _descendants(os.getpid()) - before
        program = next(pid for pid in started if pid not in _parents().values())
        os.kill(_parents()[program], signal.SIGKILL)
        assert running.result(timeout=30).status == "killed"
        assert _wait_until(lambda: not _alive(started))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_supervisor_that_does_not_answer_is_killed_with_its_program(
    mechanisms: Mechanisms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ThreadPoolExecutor(1) as pool:
        before = _descendants(os.getpid())
        running = pool.submit(run, _HANG, limits=Limits(wall_seconds=1), mechanisms=mechanisms)
        n_expected = 4 if mechanisms.bubblewrap else 2
        assert _wait_until(lambda: len(_alive(_descendants(os.getpid()) - before)) >= n_expected)
        started = _descendants(os.getpid()) - before
        program = next(pid for pid in started if pid not in _parents().values())
        os.kill(_parents()[program], signal.SIGSTOP)
        assert running.result(timeout=60).status == "timeout"
        assert _wait_until(lambda: not _alive(started))
    assert not list(tmp_path.iterdir())


def test_two_programs_at_once_share_nothing(mechanisms: Mechanisms) -> None:
    program = """
import os, sys, time
me = sys.stdin.read()
time.sleep(0.2)
open(me, "w").write("secret of " + me)
time.sleep(0.5)
print(sorted(os.listdir(".")), os.getuid())
for other in range(1, 60000):
    try:
        if other != os.getpid():
            os.kill(other, 0)
            print("can signal", other)
    except OSError:
        pass
for folder in ("..", "/tmp", "/dev/shm", "/proc"):
    try:
        print("can list", folder, os.listdir(folder))
    except OSError:
        pass
"""
    with ThreadPoolExecutor(2) as pool:
        done = list(
            pool.map(lambda name: run(program, stdin=name, mechanisms=mechanisms), ["one", "two"])
        )
    identities = []
    for name, result in zip(["one", "two"], done, strict=True):
        files, _, identity = result.stdout.strip().rpartition(" ")
        assert files == f"['{name}']", result.stdout + result.stderr
        identities.append(identity)
    if mechanisms.identity != "own":
        assert identities[0] != identities[1]


def test_no_folder_and_no_descriptor_is_left(
    mechanisms: Mechanisms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = sorted(os.listdir("/proc/self/fd"))
    run("import os\nos.makedirs('a/b/c')\nopen('a/b/c/d', 'w').close()", mechanisms=mechanisms)
    run("import os\nos.mkdir('closed', 0)", mechanisms=mechanisms)
    with pytest.raises(SandboxUnavailable):
        run("print(204)", mechanisms=Mechanisms("/nonexistent/bwrap", 1, True))
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert not list(tmp_path.iterdir())


def test_deep_tree_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_DIRECTORY)
    for _ in range(600):  # longer than PATH_MAX
        os.mkdir("deeper", dir_fd=here)
        deeper = os.open("deeper", os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("file", os.O_CREAT, dir_fd=here))
    os.symlink("/etc", "link", dir_fd=here)
    os.close(here)
    launcher.remove(str(top))
    assert not top.exists()
    assert Path("/etc").exists()


# --- what may be read


def test_installed_packages_are_not_granted_but_for_the_named_ones() -> None:
    allowed = readable()
    granted = [Path(path) for path in allowed.paths()]
    ours = Path(execution.__file__).resolve()
    assert not any(ours.is_relative_to(path) for path in granted)
    for folder in allowed.hidden:
        below = [
            path
            for path in granted
            if path.is_relative_to(folder) or Path(folder).is_relative_to(path)
        ]
        assert all(path.name.partition(".")[0] in PACKAGES for path in below), below
    assert set(allowed.packages) <= set(PACKAGES)


def test_a_folder_above_a_hidden_one_is_granted_piecemeal(tmp_path: Path) -> None:
    for name in ("lib/python/os.py", "lib/python/site-packages/answers.py", "lib/libc.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "lib/python/way-in").symlink_to(tmp_path / "lib/python/site-packages")
    allowed = Readable(
        "", "", (f"{tmp_path}/lib",), (f"{tmp_path}/lib/python/site-packages",), {}, (), None
    )
    granted = [path for path in allowed.paths() if path.startswith(str(tmp_path))]
    assert granted == [f"{tmp_path}/lib/libc.so", f"{tmp_path}/lib/python/os.py"]


# --- the filter, executed by an interpreter of classic BPF

_ALLOW, _EPERM, _ENOSYS, _KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def _filtered(
    machine: str,
    number: int,
    arguments: tuple[int, ...] = (),
    *,
    arch: int | None = None,
    own_pid: int = 4711,
) -> int:
    """What the filter answers to one system call."""
    words = {0: number, 4: _AUDIT_ARCH[machine] if arch is None else arch}
    for i in range(6):
        value = arguments[i] if i < len(arguments) else 0
        words[16 + 8 * i], words[20 + 8 * i] = value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF
    program = seccomp.filter_program(machine)
    accumulator, at = 0, 0
    while True:
        step: Instruction = program[at]
        k = own_pid if step.k == OWN_PID else step.k
        at += 1
        match step.code:
            case 0x20:
                accumulator = words[k]
            case 0x54:
                accumulator &= k
            case 0x06:
                return k
            case 0x15:
                at += step.jt if accumulator == k else step.jf
            case 0x25:
                at += step.jt if accumulator > k else step.jf
            case 0x35:
                at += step.jt if accumulator >= k else step.jf
            case 0x45:
                at += step.jt if accumulator & k else step.jf
            case other:
                raise AssertionError(other)


# name: (x86-64, aarch64); written down a second time, from the kernel's tables, as what must never
# be allowed.
_NEVER = {
    "socket": (41, 198),
    "connect": (42, 203),
    "sendto": (44, 206),
    "bind": (49, 200),
    "socketpair": (53, 199),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "unshare": (272, 97),
    "setns": (308, 268),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "lchown": (94, None),
    "utime": (132, None),
    "utimes": (235, None),
    "utimensat": (280, 88),
    "futimesat": (261, None),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "truncate": (76, 45),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "flock": (73, 32),
    "memfd_create": (319, 279),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "userfaultfd": (323, 282),
    "seccomp": (317, 277),
    "personality": (135, 92),
    "setuid": (105, 146),
    "setresuid": (117, 147),
    "setgroups": (116, 159),
    "capset": (126, 91),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "settimeofday": (170, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "timer_create": (222, 107),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "landlock_create_ruleset": (444, 444),
    "process_madvise": (440, 440),
    "openat2": (437, 437),
    "vmsplice": (278, 75),
    "splice": (275, 76),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "arch_prctl": (158, None),
}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("name", list(_NEVER))
def test_filter_denies(machine: str, name: str) -> None:
    if name == "settimeofday" and machine == "x86_64":
        number: int | None = 164
    else:
        number = _NEVER[name][machine == "aarch64"]
    if number is not None:
        for arguments in ((), (0xFFFFFFFF,) * 6, (4711,) * 6):
            assert _filtered(machine, number, arguments) == _EPERM


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_allows_what_a_calculation_needs(machine: str) -> None:
    column = machine == "aarch64"
    for numbers in (
        (0, 63),
        (1, 64),
        (3, 57),
        (9, 222),
        (11, 215),
        (202, 98),
        (231, 94),
        (228, 113),
        (217, 61),
        (318, 278),
    ):
        assert _filtered(machine, numbers[column]) == _ALLOW
    assert _filtered(machine, 435) == _ENOSYS  # clone3: the C library then uses clone
    assert _filtered(machine, 451) == _ENOSYS
    assert _filtered(machine, 600) == _ENOSYS


@pytest.mark.parametrize(
    ("machine", "clone", "kill", "tgkill", "openat", "prlimit"),
    [
        ("x86_64", 56, 62, 234, 257, 302),
        ("aarch64", 220, 129, 131, 56, 261),
    ],
)
def test_filter_conditions(
    machine: str, clone: int, kill: int, tgkill: int, openat: int, prlimit: int
) -> None:
    thread = 0x3D0F00  # what the C library's pthread_create asks for
    assert _filtered(machine, clone, (thread,)) == _ALLOW
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert _filtered(machine, clone, (thread | namespace,)) == _EPERM
    for process in (17, 0, 0x1200011, 0x4111, 0x100, 0x10000):
        assert _filtered(machine, clone, (process,)) == _EPERM
    for call in (kill, tgkill):
        assert _filtered(machine, call, (4711, 4711, 6)) == _ALLOW
        for other in (0, 1, 4710, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF):
            assert _filtered(machine, call, (other, 9, 9)) == _EPERM
    assert _filtered(machine, openat, (0, 0, 0)) == _ALLOW
    # O_WRONLY|O_CREAT|O_TRUNC: Landlock's business
    assert _filtered(machine, openat, (0, 0, 0x241)) == _ALLOW
    assert _filtered(machine, openat, (0, 0, 0x200)) == _EPERM
    assert _filtered(machine, prlimit, (0,)) == _filtered(machine, prlimit, (4711,)) == _ALLOW
    assert _filtered(machine, prlimit, (1,)) == _EPERM


@given(
    st.integers(0, 0xFFFFFFFF),
    st.tuples(*[st.integers(0, 2**64 - 1)] * 6),
    st.sampled_from(["x86_64", "aarch64"]),
)
def test_filter_always_ends_with_one_of_four_answers(
    number: int, arguments: tuple[int, ...], machine: str
) -> None:
    assert _filtered(machine, number, arguments) in (_ALLOW, _EPERM, _ENOSYS, _KILL)
    assert _filtered(machine, number, arguments, arch=0x40000003) == _KILL  # a 32-bit call
    assert _filtered(machine, number | 0x40000000, arguments) == _KILL  # x32


def test_unknown_architecture_has_no_filter() -> None:
    assert not seccomp.supported("riscv64")
    with pytest.raises(KeyError):
        seccomp.filter_program("riscv64")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_filter_fits_the_kernel(machine: str) -> None:
    program = seccomp.filter_program(machine)
    assert len(program) <= 4096
    assert all(0 <= step.jt < 256 and 0 <= step.jf < 256 for step in program)
    for i, step in enumerate(program):
        if step.code & 7 == 5:  # a jump stays inside
            assert i + 1 + max(step.jt, step.jf) < len(program)
