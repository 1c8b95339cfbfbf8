"""What this host can do to isolate a program, found by doing it: a mechanism counts when a trial
program has run under it and was refused what it should be refused.

It asks the kernel and starts trial programs; it changes nothing and installs nothing.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from itertools import product

from galahad.errors import SandboxUnavailable
from galahad.sandbox import execution, seccomp
from galahad.sandbox.execution import Execution, Identity, Level, Limits, Mechanisms
from galahad.sandbox.readable import readable

_LANDLOCK_CREATE_RULESET, _LANDLOCK_VERSION_FLAG = 444, 1
_PR_GET_SECCOMP = 21
_TRIAL_LIMITS = Limits(wall_seconds=20.0, cpu_seconds=10)
# Passes only where it can import and compute, and is refused a socket and a file that it was not
# given.
_TRIAL = """
import fractions
import os
refused = 0
try:
    import _socket
    _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM).close()
except PermissionError:
    refused += 1
try:
    open({forbidden!r}, "rb").close()
except OSError:
    refused += 1
print(fractions.Fraction(408, 2), refused)
"""


@dataclass(frozen=True)
class Capabilities:
    """The strongest mechanisms that passed their trial, and the facts about the host that explain
    them.

    `failures` names each stronger combination that was tried, with the reason it failed.
    """

    mechanisms: Mechanisms
    kernel: str
    machine: str
    uid: int
    landlock_abi: int
    seccomp: bool
    bubblewrap: str | None
    interpreter: str
    python: str
    packages: tuple[str, ...]
    failures: tuple[str, ...]

    @property
    def level(self) -> Level:
        return self.mechanisms.level

    def advice(self) -> tuple[str, ...]:
        """What is missing for the level `full` with every package, and how to get it; empty when
        nothing is.
        """
        used = self.mechanisms
        missing = []
        if not used.landlock_abi:
            missing.append(
                "Landlock: needs Linux 5.13 or later with `landlock` among the security modules "
                "(/sys/kernel/security/lsm; boot with lsm=landlock,... to add it)"
            )
        if not used.seccomp:
            missing.append(
                "seccomp filters: need Linux with CONFIG_SECCOMP_FILTER on x86-64 or aarch64"
            )
        if self.bubblewrap is None:
            missing.append("bubblewrap: install the package `bubblewrap` (apt, dnf, pacman, apk)")
        elif not used.bubblewrap:
            missing.append(
                f"bubblewrap: {self.bubblewrap} is there but did not run a program. Namespaces "
                f"may be switched off: see "
                "sysctl kernel.apparmor_restrict_unprivileged_userns (Ubuntu 23.10 and later: "
                "give bwrap an AppArmor "
                "profile that allows userns), kernel.unprivileged_userns_clone, "
                "user.max_user_namespaces; a container "
                "may forbid them"
            )
        if self.uid == 0 and used.identity != "unused":
            missing.append(
                f"an identity of its own for the program: {self.interpreter} lies in a folder "
                f"that is closed to other "
                "users; bubblewrap, or an interpreter outside of it, solves that"
            )
        absent = [name for name in ("sympy", "numpy") if name not in self.packages]
        if absent:
            missing.append(f"packages that programs often import: pip install {' '.join(absent)}")
        return tuple(missing)


def landlock_abi() -> int:
    """The Landlock ABI of the running kernel, 0 where there is none (or it was left out at
    boot).
    """
    if sys.platform != "linux":
        return 0
    version = ctypes.CDLL(None).syscall(
        ctypes.c_long(_LANDLOCK_CREATE_RULESET),
        None,
        ctypes.c_size_t(0),
        ctypes.c_long(_LANDLOCK_VERSION_FLAG),
    )
    return max(int(version), 0)


def has_seccomp() -> bool:
    """Whether the kernel takes seccomp filters and there is a system call table for this
    architecture.
    """
    if sys.platform != "linux" or not seccomp.supported(platform.machine()):
        return False
    return int(ctypes.CDLL(None).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0)) >= 0


def user_namespaces() -> bool:
    """Whether this user may make a user namespace, found by making one in a child."""
    if sys.platform != "linux":
        return False
    code = "import ctypes; raise SystemExit(-ctypes.CDLL(None).unshare(0x10000000))"
    trial = subprocess.run(
        [readable().executable, "-S", "-s", "-P", "-c", code], capture_output=True, check=False
    )
    return trial.returncode == 0


@cache
def probe(*, use_bubblewrap: bool = True) -> Capabilities:
    """Try combinations from the strongest to the weakest, and stop at the first that works. Once
    per process.

    Without `use_bubblewrap`: as on the same host with bubblewrap not installed.

    Raises:
        SandboxUnavailable: not even a program under resource limits alone could be run.
    """
    abi, filters, wrapper = (
        landlock_abi(),
        has_seccomp(),
        shutil.which("bwrap") if use_bubblewrap else None,
    )
    failures = []
    for mechanisms in _candidates(abi, filters, wrapper):
        failure = _try(mechanisms)
        if failure is None:
            break
        failures.append(f"{' + '.join(mechanisms.names())}: {failure}")
    else:
        raise SandboxUnavailable("no program can be started on this host", got="; ".join(failures))
    allowed = readable()
    return Capabilities(
        mechanisms=mechanisms,
        kernel=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        uid=os.geteuid(),
        landlock_abi=abi,
        seccomp=filters,
        bubblewrap=wrapper,
        interpreter=allowed.executable,
        python=platform.python_version(),
        packages=tuple(allowed.packages),
        failures=tuple(failures),
    )


def _candidates(abi: int, filters: bool, wrapper: str | None) -> list[Mechanisms]:
    """From the strongest to the weakest. Root takes an identity that nobody else has, and keeps its
    own only where the interpreter is out of that identity's reach; everybody else has just one."""
    identities: list[Identity] = (
        ["unused", "unused-may-search", "own"] if os.geteuid() == 0 else ["own"]
    )
    candidates = []
    for bubblewrap, landlock in product(
        [wrapper, None] if wrapper else [None], [abi, 0] if abi else [0]
    ):
        for identity in identities:
            # Inside bubblewrap every folder on the way is open, so there is nothing to search past.
            if not (bubblewrap and identity == "unused-may-search"):
                candidates.append(Mechanisms(bubblewrap, landlock, filters, identity))
    weak = [
        Mechanisms(identity=identity) for identity in identities if identity != "unused-may-search"
    ]
    isolating = [candidate for candidate in candidates if candidate.level != "weak"]
    return [*isolating, *weak]


def _try(mechanisms: Mechanisms) -> str | None:
    """None when a trial program ran under `mechanisms` and was refused what it must be, else what
    went wrong.
    """
    trial = _TRIAL.format(forbidden=os.path.realpath(__file__))
    try:
        done = execution.run(trial, limits=_TRIAL_LIMITS, allow_weak=True, mechanisms=mechanisms)
    except SandboxUnavailable as error:
        return str(error.got)
    if done.status != "ok":
        return done.stderr.strip().rpartition("\n")[2] or done.status
    answer, refused = done.stdout.split()
    if answer != "204" or (refused != "2" and mechanisms.level != "weak"):
        return "the trial program was not refused what it must be"
    return None


def run(
    source: str,
    *,
    stdin: str = "",
    limits: Limits = Limits(),
    allow_weak: bool = False,
    mechanisms: Mechanisms | None = None,
) -> Execution:
    """`execution.run` under `mechanisms`; by default the strongest that this host has (`probe`,
    once per process).

    Raises:
        SandboxUnavailable: as `execution.run`.
    """
    return execution.run(
        source,
        stdin=stdin,
        limits=limits,
        allow_weak=allow_weak,
        mechanisms=probe().mechanisms if mechanisms is None else mechanisms,
    )
