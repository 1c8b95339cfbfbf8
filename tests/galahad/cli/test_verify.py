"""`galahad verify` and `galahad doctor` as a shell sees them: exit code, stdout and stderr
apart.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from galahad import sandbox
from galahad.cli import main
from galahad.sandbox import capabilities

_ROOT = Path(__file__).parents[3]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Galahad = Callable[..., Done]


@pytest.fixture
def galahad(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Galahad]:
    """The command in this process, up to its exit code."""
    if sandbox.probe().level == "weak":
        pytest.skip("this host cannot isolate a program")

    def call(*arguments: str, given: str = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["galahad", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    previous = signal.getsignal(signal.SIGTERM)
    yield call
    signal.signal(signal.SIGTERM, previous)


@pytest.fixture
def bare_host(galahad: Galahad, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host without any mechanism, after `galahad` has looked at the real one."""
    monkeypatch.setattr(capabilities, "landlock_abi", lambda: 0)
    monkeypatch.setattr(capabilities, "has_seccomp", lambda: False)
    monkeypatch.setattr(capabilities.shutil, "which", lambda _name: None)
    sandbox.probe.cache_clear()
    yield
    sandbox.probe.cache_clear()


def test_a_real_process_in_a_pipe() -> None:
    if sandbox.probe().level == "weak":
        pytest.skip("this host cannot isolate a program")
    done = subprocess.run(
        [sys.executable, "-m", "galahad", "verify", "-", "--expect", "203"],
        input=b"print(204)",
        capture_output=True,
        check=False,
        cwd=_ROOT,
        env=dict(os.environ),
    )
    assert (done.returncode, done.stdout.splitlines()[0], done.stderr) == (
        3,
        b"refuted: printed 204, expected 203",
        b"",
    )


@pytest.mark.parametrize(
    ("program", "code", "first"),
    [
        ("print(204)", 0, "verified: printed 204, as expected"),
        ("print(203)", 3, "refuted: printed 203, expected 204"),
        ("print(204); 1/0", 4, "not-established: exit code 1: ZeroDivisionError: division by zero"),
        ("print('204 + 0')", 4, "not-established: its last line is not an integer: 204 + 0"),
    ],
)
def test_verdict_is_the_exit_code(
    program: str, code: int, first: str, tmp_path: Path, galahad: Galahad
) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    done = galahad("verify", str(path), "--expect", "204")
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0], done.stderr) == (code, first, "")
    assert lines[1].startswith(f"level {sandbox.probe().level} (")


def test_program_from_stdin_as_json(galahad: Galahad) -> None:
    done = galahad("verify", "-", "--expect", "204", "--json", given="print(204)")
    verdict = json.loads(done.stdout)
    assert done.returncode == 0
    assert verdict["schema"] == "galahad.verify/1"
    assert (verdict["verdict"], verdict["cause"], verdict["answer"], verdict["expected"]) == (
        "verified",
        "answer",
        204,
        204,
    )
    assert verdict["execution"]["level"] == sandbox.probe().level
    assert verdict["execution"]["mechanisms"] == list(sandbox.probe().mechanisms.names())


def test_without_expect_an_integer_is_enough(galahad: Galahad) -> None:
    assert galahad("verify", "-", given="print(17)").returncode == 0


def test_timeout_is_not_established(galahad: Galahad) -> None:
    done = galahad(
        "verify", "-", "--timeout", "0.4", "--json", given="print(204)\nwhile True: pass"
    )
    verdict = json.loads(done.stdout)
    assert (done.returncode, verdict["verdict"], verdict["cause"]) == (
        4,
        "not-established",
        "timeout",
    )
    assert verdict["execution"]["stdout"] == "204\n"


@pytest.mark.parametrize("expect", ["1e3", "", "9" * 5000])
def test_expected_answer_that_is_not_an_integer_is_a_usage_error(
    expect: str, galahad: Galahad
) -> None:
    done = galahad("verify", "-", "--expect", expect, given="print(204)")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_unusable_programs_are_one_clear_error(tmp_path: Path, galahad: Galahad) -> None:
    binary, long = tmp_path / "binary", tmp_path / "long"
    binary.write_bytes(b"\xff\xfe\x00")
    long.write_bytes(b"#" * (1 << 20) + b"\n")
    for path in (binary, long, tmp_path, tmp_path / "missing"):
        done = galahad("verify", str(path))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: the program ")
        assert str(path) in done.stderr
    assert galahad("verify", "-", "--timeout", "0").returncode == 2
    assert galahad("verify", "-", "--timeout", "nan").returncode == 2


@pytest.mark.usefixtures("bare_host")
def test_host_without_a_sandbox_refuses_and_runs_only_when_told(galahad: Galahad) -> None:
    refused = galahad("verify", "-", given="print(204)")
    assert (refused.returncode, refused.stdout) == (42, "")
    assert "--allow-weak" in refused.stderr
    done = galahad("verify", "-", "--allow-weak", given="print(204)")
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        "verified: ran clean and printed 204",
    )
    assert done.stdout.splitlines()[1].startswith("level weak (")
    assert done.stderr.startswith("warning: the program was not isolated")


@pytest.mark.usefixtures("bare_host")
def test_refusal_as_json(galahad: Galahad) -> None:
    refused = galahad("verify", "-", "--json", given="print(204)")
    error = json.loads(refused.stderr)["error"]
    assert (refused.returncode, error["kind"], error["exit_code"]) == (
        42,
        "sandbox-unavailable",
        42,
    )


def test_doctor_says_what_this_host_has(galahad: Galahad) -> None:
    done = galahad("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert (found["schema"], found["level"]) == ("galahad.doctor/1", sandbox.probe().level)
    assert {
        "landlock_abi",
        "seccomp",
        "user_namespaces",
        "bubblewrap",
        "uid",
        "interpreter",
        "advice",
    } <= set(found)
    shown = galahad("doctor")
    assert found["interpreter"] in shown.stdout
    assert f"level            {found['level']}" in shown.stdout


@pytest.mark.usefixtures("bare_host")
def test_doctor_on_a_host_without_a_sandbox_says_no_and_how_to_get_one(galahad: Galahad) -> None:
    done = galahad("doctor")
    assert done.returncode == 3
    for missing in (
        "missing: Landlock:",
        "missing: seccomp filters:",
        "missing: bubblewrap: install",
    ):
        assert missing in done.stdout
