"""Whether a program establishes an answer: what it printed last, and whether it got there cleanly.

The rule, the same for everyone: the program's answer is the last line of its output that is not
blank, and that line must be one integer in ASCII digits, with an optional sign, optional leading
zeros, and an optional fraction of zeros (`204.0`). Not an expression, not a list, not a sentence,
not `1e3`. It counts only when the program ended by itself with exit code 0
within its limits and its output was seen whole: what is printed before a crash or a timeout
establishes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from galahad.sandbox.capabilities import run
from galahad.sandbox.execution import Execution, Limits, Mechanisms

Outcome = Literal["verified", "refuted", "not-established"]
Cause = Literal[
    "answer",  # verified or refuted by the integer that it printed
    "timeout",
    "program-error",  # an uncaught exception, or another exit code than 0
    "crash",
    "output-limit",
    "file-limit",
    "no-output",
    "no-integer",
    "too-long",  # an integer with more digits than any answer has
]

# The length up to which int() works however low the interpreter's own limit is set (sys.int_info).
MAX_DIGITS = 640
_ANSWER = re.compile(r"([+-]?)0*([0-9]+)(?:\.0+)?")
_CAUSES: dict[str, Cause] = {
    "timeout": "timeout",
    "error": "program-error",
    "killed": "crash",
    "output-limit": "output-limit",
    "file-limit": "file-limit",
}


@dataclass(frozen=True)
class Verdict:
    """`verified`: the program printed `expected` (or, with None expected, any integer) and ended
    cleanly; `refuted`: it ended cleanly with another integer; `not-established`: neither, for
    `cause`. `detail` is for a reader."""

    verdict: Outcome
    cause: Cause
    detail: str
    answer: int | None
    expected: int | None
    execution: Execution


def _last_line(stdout: str) -> str:
    return stdout.rstrip().rpartition("\n")[2].strip()


def program_answer(stdout: str) -> int | None:
    """The integer that the output ends with (the module's rule), else None."""
    match = _ANSWER.fullmatch(_last_line(stdout))
    if match is None or len(match[2]) > MAX_DIGITS:
        return None
    return int(match[1] + match[2])


def verify(
    source: str,
    expect: int | None = None,
    *,
    stdin: str = "",
    limits: Limits = Limits(),
    allow_weak: bool = False,
    mechanisms: Mechanisms | None = None,
) -> Verdict:
    """Run `source` in the sandbox and judge it. The program never sees `expect`.

    Raises:
        SandboxUnavailable: as `run`.
    """
    return judge(
        run(source, stdin=stdin, limits=limits, allow_weak=allow_weak, mechanisms=mechanisms),
        expect,
    )


def judge(execution: Execution, expect: int | None = None) -> Verdict:
    """The verdict on what a program did."""
    if execution.status != "ok":
        return Verdict(
            "not-established",
            _CAUSES[execution.status],
            _explain(execution),
            None,
            expect,
            execution,
        )
    answer = program_answer(execution.stdout)
    if answer is None:
        cause, detail = _why_no_answer(execution.stdout)
        return Verdict("not-established", cause, detail, None, expect, execution)
    if expect is None:
        return Verdict(
            "verified", "answer", f"ran clean and printed {answer}", answer, expect, execution
        )
    if answer == expect:
        return Verdict(
            "verified", "answer", f"printed {answer}, as expected", answer, expect, execution
        )
    return Verdict(
        "refuted", "answer", f"printed {answer}, expected {expect}", answer, expect, execution
    )


def _shown(text: str, n_characters: int) -> str:
    """A program's own words in one line that a terminal takes as nothing but text."""
    kept = text if len(text) <= n_characters else text[: n_characters - 3] + "..."
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in kept
    )


def _why_no_answer(stdout: str) -> tuple[Cause, str]:
    last = _last_line(stdout)
    if not last:
        return "no-output", "printed nothing"
    if _ANSWER.fullmatch(last):
        return "too-long", f"printed an integer of more than {MAX_DIGITS} digits"
    return "no-integer", f"its last line is not an integer: {_shown(last, 60)}"


def _explain(execution: Execution) -> str:
    match execution.status:
        case "timeout":
            return (
                f"ran out of time after {execution.wall_seconds:.1f} s "
                f"({execution.cpu_seconds:.1f} s of CPU)"
            )
        case "error":
            last = execution.stderr.strip().rpartition("\n")[2]
            return f"exit code {execution.exit_code}" + (f": {_shown(last, 200)}" if last else "")
        case "output-limit":
            return "printed more than the limit"
        case "file-limit":
            return "filled its private folder"
    return f"ended by signal {execution.signal}"
