"""A run: every problem of a suite, K attempts each, by one answerer, into one log.

Attempts come in rounds: all problems once, then all a second time, so that a run that is stopped
early has the same number of attempts at (almost) every problem. This module meets golds: it grades
what the solver, which never sees one, came to.
"""

from __future__ import annotations

import platform
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from galahad import sandbox
from galahad.answerer.answerer import Answerer
from galahad.measure import energy
from galahad.measure.arm import Grade
from galahad.measure.engine import EngineRecord
from galahad.problems.problem import Problem, Suite
from galahad.solve import prompts, router, solver
from galahad.solve.records import (
    Attempt,
    RunHeader,
    SandboxRecord,
    Session,
    SuiteRecord,
    Transcript,
)
from galahad.solve.writer import RunLog
from taliesin import __version__
from taliesin.host import clock, console, machine, records


def header(
    suite: Suite,
    problems: Sequence[Problem],
    answerer: Answerer,
    settings: solver.Settings,
    graft: bool,
) -> RunHeader:
    """What makes this run this run."""
    return RunHeader(
        created=clock.now(),
        version=__version__,
        # The name without its folders: a log is shown to others, and a moved file is still the
        # same.
        suite=SuiteRecord(
            name=Path(suite.name).name,
            sha256=suite.sha256,
            problems={problem.id: problem.sha256 for problem in problems},
        ),
        engine=records.convert(answerer.identity(), EngineRecord, what="the engine's identity"),
        settings=settings,
        graft=graft,
        prompts_sha256=prompts.prompts_sha256(),
        router=router.ROUTER,
        rule=solver.RULE,
    )


class Stop:
    """Whether the user asked to stop."""

    def __init__(self) -> None:
        self.wanted = False


@contextmanager
def stop_on_interrupt(note: Callable[[str], None] = console.note) -> Iterator[Stop]:
    """The first Ctrl-C only sets `wanted`; the second one interrupts at once, as without this."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(_signum: int, _frame: FrameType | None) -> None:
        stop.wanted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        note("stopping after this attempt; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class Progress(NamedTuple):
    """After an attempt: `done` of `total` are in the log; `record` is the newest."""

    done: int
    total: int
    record: Attempt


def solve_all(
    log: RunLog,
    problems: Sequence[Problem],
    answerer: Answerer,
    settings: solver.Settings,
    *,
    stop: Stop | None = None,
    on_attempt: Callable[[Progress], None] = lambda _progress: None,
) -> bool:
    """Make the attempts that are not in the log yet; whether all are there now.

    Raises:
        SandboxUnavailable: before anything is asked of the model, if programs would have to run. As
        `solver.solve`, later.
    """
    todo = [
        (problem, number)
        for number in range(settings.attempts)
        for problem in problems
        if (problem.id, number) not in log.done
    ]
    total = len(problems) * settings.attempts
    if not todo:
        return True
    capabilities = sandbox.probe()
    if "program" in settings.routes:
        # refused now rather than after the first model's answer
        sandbox.run("", allow_weak=settings.allow_weak)
    counter = energy.find()
    saved_prefixes = answerer.prepare(prompts.PREFIXES)
    log.session(
        Session(
            started=clock.now(),
            python=platform.python_version(),
            system=machine.system(),
            cpu=machine.cpu_name(),
            engine=answerer.evidence(),
            prefixes=saved_prefixes,
            sandbox=SandboxRecord(
                level=capabilities.level, mechanisms=list(capabilities.mechanisms.names())
            ),
            energy=counter.source if counter else energy.NOT_MEASURED,
        )
    )
    for problem, number in todo:
        if stop is not None and stop.wanted:
            return False
        with energy.Meter(counter) as meter:
            attempt = solver.solve(answerer, problem.problem, problem.sha256, number, settings)
        record = log.attempt(
            attempt_record(problem, number, attempt, meter.reading()),
            Transcript(
                problem=problem.id, attempt=number, passes=attempt.texts, program=attempt.program
            ),
        )
        on_attempt(Progress(len(log.done), total, record))
    return True


def attempt_record(
    problem: Problem, number: int, attempt: solver.Attempt, reading: energy.Reading
) -> Attempt:
    """The attempt, graded, without any text of a problem or of a model."""
    return Attempt(
        problem=problem.id,
        attempt=number,
        problem_sha256=problem.sha256,
        answer=attempt.answer,
        confidence=attempt.confidence,
        doubts=attempt.doubts,
        order=attempt.order.routes,
        figure_words=len(attempt.order.figure_words),
        count_words=len(attempt.order.count_words),
        routes=attempt.routes,
        passes=attempt.passes,
        tokens_in=attempt.tokens_in,
        tokens_out=attempt.tokens_out,
        seconds=attempt.seconds,
        gold=problem.answer,
        grade=grade(attempt.answer, problem.answer),
        energy=reading,
        finished=clock.now(),
    )


def grade(answer: int | None, gold: int) -> Grade:
    """`right`, `wrong`, or `none` where there is no answer."""
    if answer is None:
        return "none"
    return "right" if answer == gold else "wrong"
