"""The scripted model and the scripted sandbox, for tests of the bank and of what is asked after its
blocks.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from galahad import sandbox
from tests.galahad.doubles import ScriptedAnswerer


@pytest.fixture
def scripted() -> type[ScriptedAnswerer]:
    return ScriptedAnswerer


@pytest.fixture
def ran() -> Callable[..., sandbox.Execution]:
    """`ran(stdout, status="ok")`: an execution that nobody made."""

    def made(stdout: str, status: sandbox.execution.Status = "ok") -> sandbox.Execution:
        code = 0 if status == "ok" else 1
        return sandbox.Execution(
            status, code, None, stdout, "", False, False, 0.1, 0.1, 1, "kernel", ("seccomp",)
        )

    return made


@pytest.fixture
def prints(
    ran: Callable[..., sandbox.Execution],
) -> Callable[..., Callable[[str, int], sandbox.Verdict]]:
    """`prints(stdout)`: a verifier under which every program prints that."""

    def made(
        stdout: str, status: sandbox.execution.Status = "ok"
    ) -> Callable[[str, int], sandbox.Verdict]:
        return lambda _program, expected: sandbox.judge(ran(stdout, status), expected)

    return made
