"""Every program of attacks.yaml, at every level that this host has: what it must not get, it does
not get.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import galahad.errors
from galahad.sandbox import Limits, Mechanisms, judge, probe, run

_SECRET = "the-secret-of-the-grail"
_SPEC = yaml.safe_load(Path(__file__).with_name("attacks.yaml").read_text(encoding="utf-8"))


def _levels() -> dict[str, Mechanisms]:
    """What to test under: the strongest, the same without bubblewrap, and that under the caller's
    own uid (what every user but root has). A level that this host lacks is skipped by name, so a
    report says what was tested."""
    best = probe()
    levels = {"full": best.mechanisms, "kernel": probe(use_bubblewrap=False).mechanisms}
    levels["kernel-own-uid"] = Mechanisms(None, best.landlock_abi, best.seccomp, "own")
    levels["weak"] = Mechanisms(identity="unused-may-search" if best.uid == 0 else "own")
    return levels


@dataclass
class Target:
    """What the programs aim at, and what tells that one was hit."""

    folder: Path
    placeholders: dict[str, str]
    servers: list[socket.socket]
    n_signals: int = 0

    def snapshot(self) -> dict[str, Any]:
        outside = {
            path.name: (
                path.read_bytes(),
                path.stat().st_mode,
                path.stat().st_mtime_ns,
                path.stat().st_uid,
            )
            for path in (self.folder / "outside").iterdir()
        }
        places = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/")
        planted = [place for place in places if Path(place, "galahad-planted").exists()]
        return {
            "outside": outside,
            "planted": planted,
            "scratch": sorted(path.name for path in (self.folder / "scratch").iterdir()),
            "signals": self.n_signals,
            "contacted": select.select(self.servers, [], [], 0)[0],
        }


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("target")
    # Open to every user: what keeps the program out must be the sandbox, not the modes.
    parents = {parent: parent.stat() for parent in (folder, *list(folder.parents)[:2])}
    ours = {
        parent: status.st_mode for parent, status in parents.items() if status.st_uid == os.getuid()
    }
    for parent, mode in ours.items():
        parent.chmod(mode | 0o055)
    outside = folder / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    (folder / "scratch").mkdir()
    (folder / "scratch").chmod(0o777)
    for name in ("victim", "answers"):
        (outside / name).write_text(_SECRET)
        (outside / name).chmod(0o666)
    (outside / "pid").write_text(str(os.getpid()))
    tcp = socket.create_server(("127.0.0.1", 0))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX)
    abstract = f"galahad-test-{os.getpid()}"
    unix.bind("\0" + abstract)
    unix.listen()
    placeholders = {
        "SECRET": str(outside / "victim"),
        "ANSWER_KEY": str(outside / "answers"),
        "OUTSIDE": str(outside),
        "OUR_PACKAGE": galahad.errors.__file__,
        "PARENT_PID_FILE": str(outside / "pid"),
        "PARENT_PID": str(os.getpid()),
        "TCP_PORT": str(tcp.getsockname()[1]),
        "UDP_PORT": str(udp.getsockname()[1]),
        "ABSTRACT": abstract,
    }
    made = Target(folder, placeholders, [tcp, udp, unix])

    def count(_signum: int, _frame: object) -> None:
        made.n_signals += 1

    previous = signal.signal(signal.SIGUSR1, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GALAHAD_TEST_SECRET", _SECRET)
        patch.setattr("tempfile.tempdir", str(folder / "scratch"))
        yield made
    signal.signal(signal.SIGUSR1, previous)
    for parent, mode in ours.items():
        parent.chmod(mode)
    for server in made.servers:
        server.close()


def _cases() -> list[Any]:
    """`kernel` with an identity of its own is between the two levels that every run covers, so it
    is left to `slow`.
    """
    cases = []
    for attack in _SPEC["attacks"]:
        for level in ("full", "kernel-own-uid", "kernel", "weak"):
            if level != "weak" or attack.get("weak"):
                marks = [pytest.mark.slow] if level == "kernel" else []
                cases.append(pytest.param(attack, level, id=f"{attack['id']}-{level}", marks=marks))
    return cases


def _program(attack: dict[str, Any], target: Target) -> str:
    program: str = _SPEC["prelude"] + attack["program"]
    for name, value in target.placeholders.items():
        program = program.replace("{" + name + "}", value)
    return program


@pytest.mark.parametrize(("attack", "level"), _cases())
def test_attack_gets_nothing(attack: dict[str, Any], level: str, target: Target) -> None:
    mechanisms = _levels().get(level)
    if mechanisms is None or mechanisms.level != level.partition("-")[0]:
        pytest.skip(f"level {level} is not to be had here")
    for package in ("sympy", "numpy"):
        if f"import {package}" in attack["program"]:
            pytest.importorskip(package)
    limits = Limits(
        wall_seconds=attack.get("seconds", 15),
        cpu_seconds=10,
        memory_bytes=512 << 20,
        file_bytes=8 << 20,
    )
    before = target.snapshot()

    done = run(_program(attack, target), limits=limits, mechanisms=mechanisms, allow_weak=True)

    said = (
        f"{done.status}, exit {done.exit_code}, signal "
        f"{done.signal}\n{done.stdout[-2000:]}\n{done.stderr}"
    )
    assert "BREACH" not in done.stdout, said
    assert _SECRET not in done.stdout + done.stderr
    assert target.snapshot() == before
    ends = attack.get("ends", ["ok"])
    assert done.status in ends, said
    assert attack.get("prints", "held" if ends == ["ok"] else "") in done.stdout, said
    assert len(done.stdout) <= limits.output_bytes
    if done.status != "ok":
        assert judge(done, 204).verdict == "not-established"


@pytest.mark.parametrize(
    "name",
    [
        "read_secret",
        "read_our_package",
        "tcp_connect",
        "udp_send",
        "abstract_unix_socket",
        "exec_shell",
        "ptrace_traceme",
    ],
)
def test_attack_is_real(name: str, target: Target) -> None:
    """Without isolation these do get what they want: the tests above can fail."""
    attack = next(attack for attack in _SPEC["attacks"] if attack["id"] == name)
    done = run(_program(attack, target), mechanisms=_levels()["weak"], allow_weak=True)
    assert "BREACH" in done.stdout
    for server in target.servers:  # take what arrived, for the next test to start from nothing
        while select.select([server], [], [], 0.05)[0]:
            server.recv(64) if server.type == socket.SOCK_DGRAM else server.accept()[0].close()


def test_every_case_of_the_design_is_here() -> None:
    ids = [attack["id"] for attack in _SPEC["attacks"]]
    assert len(ids) == len(set(ids))
    assert len(ids) >= 33 + 15
