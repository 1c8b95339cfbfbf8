"""Where a program for the bank comes from, and what a model was measured to do without it.

A program comes from a person's file, from a run of `galahad solve` (more samples of the same model,
or a stronger one by URL: the run says which), or from programs kept by the hash of the problem's
text. A source only proposes: the sandbox decides (`galahad.bank.entry.verified`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from galahad.answerer.answerer import Answerer
from galahad.bank import recall
from galahad.bank.entry import (
    Need,
    PersonSource,
    Provenance,
    RunSource,
    SolutionSource,
    Solved,
    TemplateSource,
)
from galahad.problems.problem import Problem
from galahad.problems.solutions import Solution
from galahad.problems.templates import Template
from galahad.solve import log as runlog
from galahad.solve import summary as report
from galahad.solve.log import Run


class Proposal(NamedTuple):
    """A program, and its provenance as the entry keeps it."""

    program: str
    provenance: Provenance


def of_person(program: str, file: str) -> Proposal:
    return Proposal(program, PersonSource(file=file))


def of_run(problem: Problem, run: Run) -> Proposal | None:
    """The program of the first attempt that printed the answer, by the run's own record; None if
    there is none.

    Raises:
        RunLogError: a transcript is not the one that the log names.
    """
    for attempt in run.attempts:
        found = any(
            route.route == "program" and route.answer == problem.answer for route in attempt.routes
        )
        if attempt.problem_sha256 != problem.sha256 or not found:
            continue
        transcript = runlog.transcripts(run).get(attempt.key)
        if transcript is not None and transcript.program is not None:
            return Proposal(
                transcript.program,
                RunSource(
                    run=run.chain,
                    attempt=attempt.attempt,
                    engine=run.header.engine,
                    transcript_sha256=attempt.transcript_sha256,
                ),
            )
    return None


def of_solutions(problem: Problem, solutions: Mapping[str, Solution]) -> Proposal | None:
    """The reference program that is kept for the problem's text."""
    found = solutions.get(problem.sha256)
    if found is None:
        return None
    return Proposal(found.sources["solve"], SolutionSource(solution=found.id))


def of_templates(problem: Problem, templates: Iterable[Template]) -> Proposal | None:
    """The reference program of the template that the problem is made of."""
    for template in templates:
        if template.id == problem.id and template.problem().sha256 == problem.sha256:
            return Proposal(template.program("solve"), TemplateSource(template=template.id))
    return None


def need_of_run(problem: Problem, run: Run) -> Need:
    """What the run's outcome (majority over its attempts) says of the problem."""
    hashes = run.header.suite.problems
    by = f"run {run.chain[:12]}"
    for result in report.summarise(run).results:
        if hashes.get(result.id) == problem.sha256:
            if result.grade != "right":
                return Need(solved="failed", by=by)
            return Need(solved="solved" if result.confidence == "confident" else "uncertain", by=by)
    return Need(solved="not-measured", by=by)


def is_of_model(run: Run, model_sha256: str) -> bool:
    """Whether the run was made with that model; a server's runs never say so."""
    return run.header.engine.model_sha256 == model_sha256


def measure(problem: Problem, answerer: Answerer, *, max_tokens: int) -> Need:
    """Ask the model once, greedily: right is solved, anything else failed."""
    [row] = recall.best_of([problem], answerer, 1, max_tokens=max_tokens, temperature=0.0, seed=0)
    text = f"one greedy chain of thought of at most {max_tokens} tokens"
    solved: Solved = "solved" if row.grade == "right" else "failed"
    return Need(solved=solved, by=f"{text}, answer {row.answer}")
