"""The system calls a sandboxed program may make, as a classic BPF program for seccomp(2).

An allow-list: everything else fails with EPERM, so a call that did not exist when this was written
is denied too. What a plain calculation needs is here (files, memory, threads, clocks, timers on
oneself); sockets, fork, exec, signals to others, ptrace, mounts, namespaces, io_uring, bpf, keys,
ownership, modes and times of files are not.

Pure: tables and a code generator, no system call. It does not know how the filter is installed
(`launcher`), nor what a
path is: a filter sees numbers and pointers only, so which *files* may be read is Landlock's
business.

Source: include/uapi/linux/{seccomp,audit,filter}.h; the numbers are those of the kernel's x86-64
table and of the generic table that aarch64 uses.
"""

from __future__ import annotations

from typing import NamedTuple


class Instruction(NamedTuple):
    """One `struct sock_filter`. `k` is `OWN_PID` where the launcher must put the program's own
    process id.
    """

    code: int
    jt: int
    jf: int
    k: int


OWN_PID = -1

# name: (x86-64, aarch64); None where the architecture has no such call.
_ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # bytes
    "read": (0, 63),
    "write": (1, 64),
    "readv": (19, 65),
    "writev": (20, 66),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "preadv": (295, 69),
    "pwritev": (296, 70),
    "preadv2": (327, 286),
    "pwritev2": (328, 287),
    "lseek": (8, 62),
    "close": (3, 57),
    "close_range": (436, 436),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "copy_file_range": (326, 285),
    "sendfile": (40, 71),
    "pipe": (22, None),
    "pipe2": (293, 59),
    # files and folders; which ones is decided by Landlock
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "stat": (4, None),
    "lstat": (6, None),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "creat": (85, None),
    "getdents": (78, None),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "ftruncate": (77, 46),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "fallocate": (285, 47),
    "fadvise64": (221, 223),
    "umask": (95, 166),
    # memory
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "msync": (26, 227),
    # threads of this process
    "futex": (202, 98),
    "futex_waitv": (449, 449),
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "set_tid_address": (218, 96),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120),
    "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126),
    "getpriority": (140, 141),
    "getcpu": (309, 168),
    # signals to oneself (kill and tgkill are conditional)
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "pause": (34, None),
    # who am I, what have I used
    "getpid": (39, 172),
    "gettid": (186, 178),
    "getppid": (110, 173),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "getgroups": (115, 158),
    "getpgid": (121, 155),
    "getpgrp": (111, None),
    "getsid": (124, 156),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "wait4": (61, 260),
    "waitid": (247, 95),
    "uname": (63, 160),
    "sysinfo": (99, 179),
    "getrusage": (98, 165),
    "times": (100, 153),
    "getrlimit": (97, 163),
    "setrlimit": (160, 164),
    # time and chance
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "setitimer": (38, 103),
    "getitimer": (36, 102),
    "alarm": (37, None),
    "getrandom": (318, 278),
    # waiting on one's own descriptors
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "epoll_create": (213, None),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441),
    "eventfd2": (290, 19),
}

_CLONE3 = 435  # the same on every architecture since Linux 5.3
# Calls above this one are newer than this table. They get ENOSYS, so that a newer C library takes
# its older way; EPERM would make it give up.
_LAST_KNOWN = 450

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH
_X32_BIT = 0x40000000

_LD_WORD_ABS, _AND, _RETURN = 0x20, 0x54, 0x06
_JEQ, _JGT, _JGE, _JSET = 0x15, 0x25, 0x35, 0x45
_KILL_PROCESS, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NR, _ARCH = 0, 4  # offsets in struct seccomp_data

_CLONE_VM, _CLONE_THREAD = 0x100, 0x10000
# CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET; CLONE_PTRACE, UNTRACED; CLONE_PIDFD
_CLONE_NEVER = (
    0x00020000
    | 0x02000000
    | 0x04000000
    | 0x08000000
    | 0x10000000
    | 0x20000000
    | 0x40000000
    | 0x802000
    | 0x1000
)
_O_ACCMODE, _O_TRUNC = 0x3, 0x200
# F_DUPFD, GETFD, SETFD, GETFL, SETFL, DUPFD_CLOEXEC, GETPIPE_SZ. Not F_SETOWN or F_SETSIG (they
# signal others), not the locks (two programs could talk through a lock on a library file), not
# leases or F_NOTIFY.
_FCNTL = (0, 1, 2, 3, 4, 1030, 1032)
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONCLEX, FIOCLEX
_PRCTL = (15, 16)  # PR_SET_NAME, PR_GET_NAME
_SELF = 0


def supported(machine: str) -> bool:
    """Whether there is a system call table for `machine` (as `platform.machine()` says it)."""
    return machine in _ARCHITECTURES


def _return(action: int) -> Instruction:
    return Instruction(_RETURN, 0, 0, action)


def _argument(index: int) -> Instruction:
    """Load the low word of argument `index`: all of it for the int arguments that are compared
    here.
    """
    return Instruction(_LD_WORD_ABS, 0, 0, 16 + 8 * index)


def _only(index: int, values: tuple[int, ...]) -> list[Instruction]:
    """Allow when argument `index` is one of `values`, else EPERM."""
    tests = [Instruction(_JEQ, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [_argument(index), *tests, _return(_ERRNO | _EPERM), _return(_ALLOW)]


def _no_blind_truncation(flags: int) -> list[Instruction]:
    """Deny O_RDONLY|O_TRUNC: it empties a file, and Landlock before ABI 3 takes it for reading."""
    return [
        _argument(flags),
        Instruction(_AND, 0, 0, _O_TRUNC | _O_ACCMODE),
        Instruction(_JEQ, 0, 1, _O_TRUNC),
        _return(_ERRNO | _EPERM),
        _return(_ALLOW),
    ]


_ONE_THREAD = [  # a thread of this process, never a process
    _argument(0),
    Instruction(_JSET, 3, 0, _CLONE_NEVER),
    Instruction(_AND, 0, 0, _CLONE_VM | _CLONE_THREAD),
    Instruction(_JEQ, 0, 1, _CLONE_VM | _CLONE_THREAD),
    _return(_ALLOW),
    _return(_ERRNO | _EPERM),
]
# Allowed for some arguments only: name, (x86-64, aarch64), what to do once the number matched.
_CONDITIONAL: list[tuple[str, tuple[int | None, int | None], list[Instruction]]] = [
    ("clone", (56, 220), _ONE_THREAD),
    ("kill", (62, 129), _only(0, (OWN_PID,))),
    ("tgkill", (234, 131), _only(0, (OWN_PID,))),  # what raise() and abort() are made of
    ("open", (2, None), _no_blind_truncation(1)),
    ("openat", (257, 56), _no_blind_truncation(2)),
    ("fcntl", (72, 25), _only(1, _FCNTL)),
    ("ioctl", (16, 29), _only(1, _IOCTL)),
    ("prctl", (157, 167), _only(0, _PRCTL)),
    ("prlimit64", (302, 261), _only(0, (_SELF, OWN_PID))),
]


def filter_program(machine: str) -> list[Instruction]:
    """The filter for `machine`.

    Raises:
        KeyError: no table for that architecture. There is no default: a filter with wrong numbers
        is worse than none.
    """
    column, audit_arch = _ARCHITECTURES[machine]
    program = [
        Instruction(_LD_WORD_ABS, 0, 0, _ARCH),
        Instruction(_JEQ, 1, 0, audit_arch),
        _return(_KILL_PROCESS),  # a 32-bit call on a 64-bit kernel has other numbers
        Instruction(_LD_WORD_ABS, 0, 0, _NR),
        Instruction(_JGE, 0, 1, _X32_BIT),
        _return(_KILL_PROCESS),
        # The flags of clone3 lie behind a pointer, where a filter cannot look; with ENOSYS the C
        # library uses clone.
        Instruction(_JEQ, 0, 1, _CLONE3),
        _return(_ERRNO | _ENOSYS),
        Instruction(_JGT, 0, 1, _LAST_KNOWN),
        _return(_ERRNO | _ENOSYS),
    ]
    for _, numbers, body in _CONDITIONAL:
        number = numbers[column]
        if number is not None:
            program += [Instruction(_JEQ, 0, len(body), number), *body]
    for numbers in _ALLOWED.values():
        number = numbers[column]
        if number is not None:
            program += [Instruction(_JEQ, 0, 1, number), _return(_ALLOW)]
    return [*program, _return(_ERRNO | _EPERM)]
