"""`galahad verify` and `galahad doctor`: judge one program in the sandbox, and say what sandbox
this host has.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from taliesin.cli.options import Json
from taliesin.errors import EXIT_NO, EXIT_OK, EXIT_PARTIAL, UsageError
from taliesin.host import console

commands = typer.Typer()

_MAX_SOURCE_BYTES = 1 << 20
_EXIT_CODES = {"verified": EXIT_OK, "refuted": EXIT_NO, "not-established": EXIT_PARTIAL}


def read_program(program: str) -> str:
    """The text of a Python file, or of stdin for `-`.

    Raises:
        UsageError: not readable, too long, or not UTF-8.
    """
    try:
        with sys.stdin.buffer if program == "-" else Path(program).open("rb") as file:
            content = file.read(_MAX_SOURCE_BYTES + 1)
    except OSError as error:
        raise UsageError("the program cannot be read", where=program, got=error.strerror) from error
    if len(content) > _MAX_SOURCE_BYTES:
        raise UsageError("the program is too long", expected="at most 1 MiB", where=program)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            "the program is not UTF-8 text", where=f"{program}, byte {error.start}"
        ) from error


@commands.command()
def verify(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="A Python file, or - for stdin.")
    ],
    expect: Annotated[
        int | None, typer.Option("--expect", metavar="N", help="The integer it should print.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", help="Seconds it may run.")
    ] = 10.0,
    allow_weak: Annotated[
        bool,
        typer.Option("--allow-weak", help="Run it even where only resource limits hold it back."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a program in the sandbox and judge it by the last line that it prints.

        galahad verify program.py --expect 204

    The last line must be one integer. Without --expect, any integer will do. A program that
    crashed, ran out of time or had its output cut establishes nothing, whatever it printed before.
    The program never sees N.

    Exit codes: 0 verified, 3 refuted (another integer), 4 not established, 2 usage, 42 this host
    has no sandbox.
    """
    if not 0 < timeout <= 86400:
        raise UsageError(
            "--timeout is out of range", expected="more than 0, at most 86400 seconds", got=timeout
        )
    source = read_program(program)
    from galahad import sandbox

    limits = sandbox.Limits(wall_seconds=timeout, cpu_seconds=math.ceil(timeout))
    verdict = sandbox.verify(source, expect, limits=limits, allow_weak=allow_weak)
    done = verdict.execution
    if as_json:
        console.emit_json("galahad.verify/1", asdict(verdict))
    else:
        console.out(f"{verdict.verdict}: {verdict.detail}")
        console.out(f"level {done.level} ({', '.join(done.mechanisms)}), {done.wall_seconds:.2f} s")
    if done.level == "weak":
        console.warn("the program was not isolated: only resource limits held it back")
    raise typer.Exit(_EXIT_CODES[verdict.verdict])


@commands.command()
def doctor(as_json: Json = False) -> None:
    """Show what this host can do to isolate a program, by running trial programs.

        galahad doctor

    Levels: full (namespaces by bubblewrap, Landlock, seccomp), kernel (seccomp, and files confined
    by Landlock or by bubblewrap), weak (resource limits only; used with --allow-weak alone).

    Exit codes: 0 programs can be isolated, 3 the level is weak, 42 no program can be started at
    all.
    """
    from galahad import sandbox

    found = sandbox.probe()
    namespaces = sandbox.user_namespaces()
    if as_json:
        fields = {
            **asdict(found),
            "level": found.level,
            "user_namespaces": namespaces,
            "advice": found.advice(),
        }
        console.emit_json("galahad.doctor/1", fields)
    else:
        used = found.mechanisms
        identity = {
            "own": "its own",
            "unused": "an unused one",
            "unused-may-search": "an unused one that may pass folders",
        }
        wrapper = (
            "not installed"
            if found.bubblewrap is None
            else f"{found.bubblewrap} did not run a program"
        )
        rows = [
            ["level", found.level],
            ["kernel", f"{found.kernel} {found.machine}"],
            ["Landlock", f"ABI {found.landlock_abi}" if found.landlock_abi else "no"],
            ["seccomp filters", "yes" if found.seccomp else "no"],
            ["user namespaces", "yes" if namespaces else "no"],
            ["bubblewrap", f"{used.bubblewrap} works" if used.bubblewrap else wrapper],
            ["uid", f"{found.uid}; programs run under {identity[used.identity]}"],
            ["interpreter", f"{found.interpreter} ({found.python})"],
            ["packages", ", ".join(found.packages) or "none"],
        ]
        console.out(console.table(["what", "found"], rows))
        for line in found.advice():
            console.out(f"missing: {line}")
        for line in found.failures:
            console.note(f"tried {line}")
    raise typer.Exit(EXIT_NO if found.level == "weak" else EXIT_OK)
