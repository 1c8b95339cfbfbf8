"""An entry of a bank: a verified solution, where it comes from, and who needs it.

Two rules decide what becomes one. A program counts only when the sandbox has run it and it printed
the answer (`verified`). And a problem counts only when the model was measured not to solve it, or
somebody insists (`require_need`): a solution that the model does not need has been measured to help
nothing and to cost accuracy. Deliberately does not know: files, and how a block is computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from galahad import sandbox
from galahad.answerer.answerer import SavedBlock
from galahad.errors import BankError
from galahad.measure.canonical import sha256_of
from galahad.measure.engine import EngineRecord
from galahad.problems.problem import GOLDS, Gold, Problem, text_sha256
from galahad.responses import program as programs
from taliesin.host import clock, records
from taliesin.host.records import Record

# the block of all entries is called so; an entry of that id would lose its own to it
MERGED = "merged"
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

Verify = Callable[[str, int], sandbox.Verdict]
Solved = Literal["solved", "uncertain", "failed", "not-measured"]


# -- where a program comes from --------------------------------------------------------------------


class PersonSource(Record, tag_field="source", tag="person"):
    """A person's file, by its name."""

    file: str


class RunSource(Record, tag_field="source", tag="run"):
    """An attempt of a run of `galahad solve`, by the run's chain."""

    run: str
    attempt: int
    engine: EngineRecord
    transcript_sha256: str


class SolutionSource(Record, tag_field="source", tag="solution"):
    """A reference program that is kept for the problem's text."""

    solution: str


class TemplateSource(Record, tag_field="source", tag="template"):
    """The reference program of the template that the problem is made of."""

    template: str


class RewriteSource(Record, tag_field="source", tag="rewrite"):
    """A model's rewrite of another program (`of`: its hash), which came from `before`."""

    engine: EngineRecord
    of: str
    before: Provenance


Provenance = PersonSource | RunSource | SolutionSource | TemplateSource | RewriteSource


# -- the entry -------------------------------------------------------------------------------------


class Need(Record):
    """Whether the model needs the solution. `solved` is what was measured, `by` how (a run's chain,
    or a person's word).
    """

    solved: Solved
    by: str


class Verification(Record):
    """How the program was verified: the verdict, the level and mechanisms of the sandbox, its
    time.
    """

    verdict: str
    answer: int | None
    level: str
    mechanisms: list[str]
    wall_seconds: Annotated[float, Meta(ge=0)]
    at: str

    @classmethod
    def of(cls, verdict: sandbox.Verdict) -> Verification:
        execution = verdict.execution
        return cls(
            verdict=verdict.verdict,
            answer=verdict.answer,
            level=execution.level,
            mechanisms=list(execution.mechanisms),
            wall_seconds=round(execution.wall_seconds, 3),
            at=clock.now(),
        )


class Entry(Record):
    """A verified solution.

    program: prints `answer`, verified in the sandbox. parametric: no number of the problem stands
    inside its logic; `findings` says which do. need: by model hash, what the model was measured to
    do without it. blocks: by model hash, its block. seal: the hash of all other fields but
    `schema`; empty before the entry is stored.
    """

    SCHEMA = "galahad.entry/1"
    id: str
    problem: str
    sha256: str
    answer: Gold
    program: str
    program_sha256: str
    parametric: bool
    findings: tuple[str, ...]
    verification: Verification
    provenance: Provenance
    need: dict[str, Need]
    blocks: dict[str, SavedBlock]
    created: str
    schema: Literal["galahad.entry/1"] = "galahad.entry/1"
    seal: str = ""

    @property
    def source(self) -> str:
        """In a word, where the program comes from."""
        return str(type(self.provenance).__struct_config__.tag)

    def fields(self) -> dict[str, Any]:
        """What the entry says, JSON-ready, without the schema and the seal."""
        plain: dict[str, Any] = records.plain(self)
        return {name: value for name, value in plain.items() if name not in ("schema", "seal")}

    def document(self) -> str:
        """What the block holds."""
        return (
            f"Problem:\n{self.problem}\n\n"
            f"Verified Python program:\n```python\n{self.program.strip()}\n```\n\n"
            f"Verified answer: {self.answer}"
        )

    def block(self, model_sha256: str) -> str:
        """The name of the block of that model.

        Raises:
            BankError: the model has none.
        """
        found = self.blocks.get(model_sha256)
        if found is None:
            raise BankError(
                f"{self.id} has no block of this model",
                expected=f"model {model_sha256[:12]}",
                got=", ".join(block.model for block in self.blocks.values()) or "none",
                hint="galahad bank add with --model computes it",
            )
        return found.name


def verified(
    problem: Problem,
    program: str,
    provenance: Provenance,
    verify: Verify = sandbox.verify,
) -> Entry:
    """The entry of a program that the sandbox ran now and that printed the problem's answer.

    Raises:
        BankError: it did not; the message says what it did instead. UsageError: not Python.
        SandboxUnavailable: as `verify`.
    """
    if not ID.fullmatch(problem.id) or problem.id == MERGED:
        raise BankError(
            "this id cannot name an entry",
            expected=f"at most 100 letters, digits, . _ -, and not {MERGED}",
            got=ascii(problem.id[:80]),
        )
    if problem.answer not in GOLDS:
        raise BankError(
            "the answer is out of range", expected="0..999", got=problem.answer, where=problem.id
        )
    # JSON can hold half a character, which can be neither tokenized nor printed.
    if any("\ud800" <= char <= "\udfff" for char in problem.problem + program):
        raise BankError("a text with half a surrogate pair cannot be banked", where=problem.id)
    check = programs.check(program, problem.problem)
    verdict = verify(program, problem.answer)
    if verdict.verdict != "verified":
        raise BankError(
            f"the program does not establish the answer of {problem.id}",
            expected=f"it prints {problem.answer} and ends cleanly",
            got=f"{verdict.verdict}, {verdict.cause}: {verdict.detail}",
        )
    return Entry(
        id=problem.id,
        problem=problem.problem,
        sha256=problem.sha256,
        answer=problem.answer,
        program=program,
        program_sha256=sha256_of(program),
        parametric=check.parametric,
        findings=tuple(check.explain()),
        verification=Verification.of(verdict),
        provenance=provenance,
        need={},
        blocks={},
        created=clock.now(),
    )


def rewritten(entry: Entry, program: str, provenance: Provenance, verify: Verify) -> Entry:
    """The entry with another program for the same answer, verified; its blocks hold the old one and
    are left out. Raises as `verified`.
    """
    problem = Problem(entry.id, entry.problem, entry.answer, entry.sha256)
    anew = verified(problem, program, provenance, verify)
    return msgspec.structs.replace(anew, need=entry.need, created=entry.created)


def require_need(entry_id: str, need: Need, *, force: bool) -> None:
    """The rule of `only needed`.

    Raises:
        BankError: the model solves the problem, or nobody measured whether it does, and nobody
        insists.
    """
    if force or need.solved in ("uncertain", "failed"):
        return
    if need.solved == "solved":
        raise BankError(
            f"the model already solves {entry_id}",
            expected="a problem that it fails or is uncertain about",
            got=f"solved, by {need.by}",
            hint="--force banks it all the same",
        )
    raise BankError(
        f"nobody measured whether the model solves {entry_id}",
        hint="--run RUN of `galahad solve` with this model, --measure, or --force",
    )


class Trouble(Record):
    """What is wrong with an entry or a block (`what` names it)."""

    what: str
    kind: Literal["entry", "problem", "program", "block"]
    detail: str


def contradictions(entry: Entry, id_: str) -> Iterator[Trouble]:
    """What an entry, read from the file of `id_`, says of itself that does not hold."""
    if entry.id != id_:
        yield Trouble(what=id_, kind="entry", detail=f"the file holds the entry {entry.id}")
    if text_sha256(entry.problem) != entry.sha256:
        yield Trouble(what=id_, kind="problem", detail="the text has another hash")
    if sha256_of(entry.program) != entry.program_sha256:
        yield Trouble(what=id_, kind="program", detail="the program has another hash")
