"""The child side of the sandbox: a supervisor, and a child of it that gives up its rights and then
runs the program in the same interpreter, so that nothing has to be allowed to exec.

The host (`execution`) sends this module's code and its settings through one descriptor, holds the
other end of `control` for
as long as the program may live, and reads lines from `status`: `ready`; `limit NAME` when the
supervisor ends the program; `exit WAIT_STATUS CPU_SECONDS PEAK_BYTES` when nothing of it is left;
or `failed REASON`. When the host dies, however it dies, `control` ends; then the supervisor kills
everything it started and removes the private folder.

Only the standard library's quick parts are imported, and nothing of this distribution: it is not
readable where this runs.
Between `fork` and `ready` every failure is fatal: a program never runs with less isolation than was
asked for.

Source: prctl(2), capset(2), seccomp(2), and include/uapi/linux/landlock.h.
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import ctypes
import os
import resource
import select
import struct
import sys
import time

TYPE_CHECKING = False  # `typing` takes 3 ms to import, and `signal` (for its enum) 8
if TYPE_CHECKING:
    from typing import Any

SIGKILL = 9

PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = (
    1,
    8,
    22,
    36,
    38,
)
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3, CAP_DAC_READ_SEARCH = 0x20080522, 2

# Landlock's calls have the same numbers on every architecture.
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
RULE_PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_DIR, MAKE_REG, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV = (
    1 << bit for bit in (7, 8, 12, 13, 14, 15)
)
ALL_OF_ABI_1 = (1 << 13) - 1
RIGHTS_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = READ_FILE | READ_DIR
OWN_FOLDER = (
    READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_SYM | REFER | TRUNCATE
)
BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL = 1, 2

N_DESCRIPTORS = 64
STACK_BYTES = 64 << 20  # below the 128 MiB gap that Linux keeps free under the main thread's stack
TICK_SECONDS = 0.05

libc = ctypes.CDLL(None, use_errno=True)


class SetupFailed(Exception):
    pass


def checked(what: str, result: int) -> int:
    if result < 0:
        raise SetupFailed(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def syscall(what: str, number: int, *arguments: Any) -> int:
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return checked(what, libc.syscall(ctypes.c_long(number), *words))


def prctl(what: str, option: int, *arguments: int) -> None:
    words = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    checked(what, libc.prctl(option, *words))


def is_folder(status: os.stat_result) -> bool:
    return status.st_mode & 0o170000 == 0o040000


def is_file(status: os.stat_result) -> bool:
    return status.st_mode & 0o170000 == 0o100000


def landlock_ruleset(abi: int, grants: list[tuple[str, int]]) -> int:
    """A descriptor of a ruleset that denies all that a kernel of this `abi` can deny, except
    `grants` (path, rights).
    """
    # A kernel refuses rights that it does not know.
    handled = ALL_OF_ABI_1
    handled |= REFER if abi >= 2 else 0
    handled |= TRUNCATE if abi >= 3 else 0
    handled |= IOCTL_DEV if abi >= 5 else 0
    attributes = struct.pack(
        "=QQQ", handled, BIND_TCP | CONNECT_TCP, SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL
    )
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = syscall("landlock", LANDLOCK_CREATE_RULESET, attributes, size, 0)
    for path, rights in grants:
        try:
            target = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # what is gone needs no right
        allowed = rights & handled & (-1 if is_folder(os.fstat(target)) else RIGHTS_OF_FILES)
        rule = struct.pack("=Qi", allowed, target)
        syscall(f"landlock rule for {path}", LANDLOCK_ADD_RULE, ruleset, RULE_PATH_BENEATH, rule, 0)
        os.close(target)
    return ruleset


def install_filter(code: bytes, pid_offsets: list[int]) -> None:
    """Install a seccomp filter for good. `code` is an array of struct sock_filter; this process's
    id goes to `pid_offsets`.
    """
    patched = bytearray(code)
    for offset in pid_offsets:
        struct.pack_into("=I", patched, offset, os.getpid())
    instructions = ctypes.create_string_buffer(bytes(patched), len(patched))
    program = ctypes.create_string_buffer(
        struct.pack("HP", len(patched) // 8, ctypes.addressof(instructions))
    )
    prctl("seccomp", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program))


def keep_capabilities(wanted: int) -> None:
    """Give up every capability that is not in the bit set `wanted`."""
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    checked("capset", libc.capset(header, struct.pack("=6I", wanted, wanted, 0, 0, 0, 0)))


def become(uid: int, may_search: bool) -> None:
    """Take the identity `uid` for good, without capabilities; `may_search` keeps the one to pass
    folders that are closed to `uid` (an interpreter in somebody's 0700 home). What may be opened
    beyond them is still Landlock's list."""
    if may_search:
        prctl("keep capabilities", PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if may_search:
        keep_capabilities(1 << CAP_DAC_READ_SEARCH)


def set_limits(settings: dict[str, Any]) -> None:
    cpu, n_tasks = settings["cpu_seconds"], settings["n_tasks"]
    limits = [
        (resource.RLIMIT_CPU, cpu, cpu + 1),  # SIGXCPU; SIGKILL a second later for who ignores it
        (resource.RLIMIT_AS, settings["memory_bytes"], settings["memory_bytes"]),
        (resource.RLIMIT_FSIZE, settings["file_bytes"], settings["file_bytes"]),
        (resource.RLIMIT_NOFILE, N_DESCRIPTORS, N_DESCRIPTORS),
        # 0 would still pipe a crash to the host's core handler; 1 stops that too
        (resource.RLIMIT_CORE, 1, 1),
        (resource.RLIMIT_STACK, STACK_BYTES, STACK_BYTES),
        (resource.RLIMIT_NPROC, n_tasks, n_tasks),
    ]
    for which, soft, hard in limits:
        ceiling = resource.getrlimit(which)[1]
        if ceiling == resource.RLIM_INFINITY:
            ceiling = hard
        # this user's own may be lower
        resource.setrlimit(which, (min(soft, ceiling), min(hard, ceiling)))


def give_up_rights(settings: dict[str, Any], supervisor: int) -> None:
    """The order matters: rules name paths that only the old identity reaches, a change of identity
    clears the parent-death signal, and behind the filter nothing can be set up any more."""
    ruleset = None
    if settings["landlock_abi"]:
        grants = [(path, READ) for path in settings["readable"]]
        grants.append((settings["listed"], READ_DIR))
        grants += [(path, READ_FILE | WRITE_FILE) for path in settings["devices"]]
        grants.append((settings["scratch"], OWN_FOLDER))
        ruleset = landlock_ruleset(settings["landlock_abi"], grants)
    set_limits(settings)
    if settings["uid"] is not None:
        become(settings["uid"], settings["may_search"])
    elif settings["is_linux"] and os.geteuid() == 0:
        keep_capabilities(0)
    if settings["is_linux"]:
        prctl("parent-death signal", PR_SET_PDEATHSIG, SIGKILL)
        if os.getppid() != supervisor:
            os._exit(1)  # it died before the signal was asked for
        prctl("no new privileges", PR_SET_NO_NEW_PRIVS, 1)
    if ruleset is not None:
        syscall("landlock", LANDLOCK_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
    if settings["filter"]:
        install_filter(settings["filter"], settings["pid_offsets"])


class Packages:
    """Finds the granted packages by name, without listing the folder that they are installed in."""

    def __init__(self, folders: dict[str, str]) -> None:
        self.folders = folders

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        folder = self.folders.get(name)
        if folder is None:
            return None
        from importlib.machinery import ModuleSpec, SourceFileLoader

        start = f"{folder}/__init__.py"
        spec = ModuleSpec(name, SourceFileLoader(name, start), origin=start, is_package=True)
        spec.submodule_search_locations = [folder]
        spec.has_location = True
        return spec


def report(error: Exception, source: bytes) -> None:
    """A traceback on stderr that starts in the program and shows its lines."""
    error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
    try:
        import linecache
        import traceback

        lines = source.decode("utf-8", "replace").splitlines(keepends=True)
        linecache.cache["program.py"] = (len(source), None, lines, "program.py")
        traceback.print_exception(error, limit=-20)
    except Exception:  # no memory left, or the program broke what this needs
        sys.__excepthook__(type(error), error, error.__traceback__)


def run_program(settings: dict[str, Any], status: int, supervisor: int) -> None:
    """Give up rights, then run the program. Returns when it has ended, for the interpreter to wind
    down as it always does (threads joined, output flushed)."""
    try:
        os.setsid()
        os.chdir(settings["scratch"])
        os.umask(0o077)
        give_up_rights(settings, supervisor)
    except (OSError, SetupFailed, ValueError) as error:
        os.write(status, f"failed {error}\n".encode())
        os._exit(1)
    os.write(status, b"ready\n")
    os.close(status)

    source: bytes = settings["source"]
    # What `site` would have added and programs use.
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    sys.meta_path.append(Packages(settings["packages"]))
    sys.argv[:] = ["program.py"]
    module = type(sys)("__main__")
    module.__dict__.update(__builtins__=builtins, __file__="program.py")
    sys.modules["__main__"] = module
    try:
        exec(compile(source, "program.py", "exec", dont_inherit=True), module.__dict__)
    except Exception as error:
        report(error, source)
        sys.exit(1)


def children_of(pid: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue  # it ended meanwhile
            if parent == pid:
                found.append(int(name))
    return found


def kill_orphans() -> None:
    """Kill and reap whatever is left. This process is the subreaper: every orphan becomes its
    child, so when it has no child any more, nothing survived. Only the level `weak` lets a program
    have descendants at all."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            for orphan in children_of(os.getpid()):
                os.kill(orphan, SIGKILL)
            time.sleep(0.001)


def overfull(scratch: str, child: int, n_files: int, n_bytes: int) -> bool:
    """Whether the private folder, with the unlinked files that `child` still has open, is past its
    limits.

    A folder that cannot be looked into counts as past them: a program has no reason to make one."""
    files = used = 0
    folders = [scratch]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    files += 1
                    used += entry.stat(follow_symlinks=False).st_blocks * 512
                    if files > n_files or used > n_bytes:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError:
            return True
    try:
        for name in os.listdir(f"/proc/{child}/fd"):
            held = os.stat(f"/proc/{child}/fd/{name}")
            used += held.st_blocks * 512 if held.st_nlink == 0 and is_file(held) else 0
    except OSError:
        # the child just ended, or there is no /proc (then the folder is a file system of limited
        # size)
        pass
    return used > n_bytes


def remove(folder: str) -> None:
    """Remove `folder`, however deep: nested folders are moved up before they are emptied, so no
    path grows too long.

    Nothing else may be using it: it is called when every process that could is dead."""
    if not os.path.isdir(folder):
        return  # the program has removed it, which only the level `weak` lets it do
    pending, empty = [folder], []
    while pending:
        current = pending.pop()
        with os.scandir(current) as entries:
            content = list(entries)
        for entry in content:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
                continue
            os.chmod(entry.path, 0o700)
            moved = f"{folder}/{os.urandom(12).hex()}"
            os.rename(entry.path, moved)
            pending.append(moved)
        empty.append(current)
    for path in reversed(empty):
        os.rmdir(path)


def supervise(child: int, settings: dict[str, Any], control: int, status: int) -> tuple[int, Any]:
    """Wait until the program has ended, the host wants it gone, or it passes a limit that only an
    observer sees.

    Returns its wait status and resource usage; by then nothing of it is left."""
    host = os.getppid()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    tick_ms = TICK_SECONDS * 1000
    try:
        poll.register(os.pidfd_open(child), select.POLLIN)
    except (AttributeError, OSError):
        tick_ms /= 10  # before Linux 5.3: ask often
    while True:
        ended, wait_status, usage = os.wait4(child, os.WNOHANG)
        if not ended:
            unwanted = (
                any(descriptor == control for descriptor, _ in poll.poll(tick_ms))
                or os.getppid() != host
            )
            if not unwanted and not overfull(
                settings["scratch"], child, settings["n_files"], settings["file_bytes"]
            ):
                continue
            os.kill(child, SIGKILL)
            if not unwanted:
                os.write(status, b"limit files\n")
            _, wait_status, usage = os.wait4(child, 0)
        kill_orphans()
        return wait_status, usage


def main(settings: dict[str, Any], control: int, status: int) -> None:
    """Returns in the child only, after the program has ended."""
    try:
        if settings["is_linux"]:
            prctl("subreaper", PR_SET_CHILD_SUBREAPER, 1)
        if settings["makes_scratch"]:
            os.mkdir(settings["scratch"], 0o700)
            if settings["uid"] is not None:
                os.chown(settings["scratch"], settings["uid"], settings["uid"])
        supervisor = os.getpid()
        child = os.fork()
    except (OSError, SetupFailed) as error:
        os.write(status, f"failed {error}\n".encode())
        os._exit(1)
    if child == 0:
        os.close(control)
        run_program(settings, status, supervisor)
        return
    # The program's output ends when the program does: the supervisor keeps no end of it.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    wait_status, usage = supervise(child, settings, control, status)
    if settings["makes_scratch"]:
        remove(settings["scratch"])
    try:
        cpu_seconds = usage.ru_utime + usage.ru_stime
        os.write(
            status, f"exit {wait_status} {cpu_seconds:.4f} {usage.ru_maxrss * 1024}\n".encode()
        )
    except BrokenPipeError:
        pass  # the host is gone, which is why we are here
    os._exit(0)
