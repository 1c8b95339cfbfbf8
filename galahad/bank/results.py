"""What `galahad bank add` and `bank lint` print, as types with their readers.

Deliberately does not know: how a problem is banked or a program judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from galahad.bank.entry import Provenance, Verification
from taliesin.host.findings import Amount, Finding, Result, Said
from taliesin.host.records import Record


class AddedProblem(Record):
    """What became of one problem; the last three are there where it was banked."""

    id: str
    status: Literal["banked", "not needed", "refused"]
    n_tokens: Amount | None
    why: str
    parametric: bool | None = None
    provenance: Provenance | None = None
    verification: Verification | None = None


class AddResult(Result):
    """Every problem that was to be banked."""

    SCHEMA = "galahad.bank.add/1"
    bank: str
    problems: list[AddedProblem]

    def findings(self, file: str) -> Iterator[Finding]:
        if len(self.problems) == 1:  # of the banks that controls are made of, one by one
            return
        sizes = [problem.n_tokens for problem in self.problems if problem.n_tokens]
        reasons = sorted({f"{p.id}: {p.why}" for p in self.problems if not p.n_tokens})
        yield Said(
            "C9",
            f"{Path(file).parent.as_posix()}: {len(sizes)} of {len(self.problems)} problems "
            f"banked, {sum(sizes)} tokens" + "".join(f"; {reason}" for reason in reasons),
        )


class RewriteOutcome(Record):
    """What a model's rewrite came to."""

    reason: str
    tokens_out: Amount


class LintedEntry(Record):
    """Whether numbers of the problem stand in the program's logic; `rewrite` where one was asked
    for.
    """

    id: str
    parametric: bool
    findings: list[str]
    rewrite: RewriteOutcome | None


class LintResult(Result):
    """Every entry of a bank."""

    SCHEMA = "galahad.bank.lint/1"
    bank: str
    entries: list[LintedEntry]

    def findings(self, file: str) -> Iterator[Finding]:
        baked = ", ".join(entry.id for entry in self.entries if not entry.parametric)
        rewritten = [entry for entry in self.entries if entry.rewrite]
        n_parametric = sum(entry.parametric for entry in self.entries)
        n_kept = sum(entry.parametric for entry in rewritten)
        yield Said(
            "C14",
            f"{n_parametric} of {len(self.entries)} banked programs are parametric"
            + (f"; not: {baked}" if baked else "")
            + (f"; {len(rewritten)} rewrites asked for, {n_kept} kept" if rewritten else ""),
        )
