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
from typing import Any, NamedTuple

from galahad import sandbox
from galahad.answerer.answerer import Answerer
from galahad.measure import energy
from galahad.problems.problem import Problem, Suite
from galahad.solve import solver
from galahad.solve.log import Record, RunLog
from taliesin import __version__
from taliesin.host import clock, console, machine, records


def header(
    suite: Suite,
    problems: Sequence[Problem],
    answerer: Answerer,
    settings: solver.Settings,
    graft: bool,
) -> Record:
    """What makes this run this run; everything but `created` must be equal to go on with it."""
    return {
        "created": clock.now(),
        "version": __version__,
        # The name without its folders: a log is shown to others, and a moved file is still the
        # same.
        "suite": {
            "name": Path(suite.name).name,
            "sha256": suite.sha256,
            "problems": {p.id: p.sha256 for p in problems},
        },
        "engine": answerer.identity(),
        "settings": settings.as_dict(),
        "graft": graft,
        "prompts_sha256": solver.prompts_sha256(),
        "router": solver.ROUTER,
        "rule": solver.RULE,
    }


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
    record: Record


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
    todo = [(p, k) for k in range(settings.attempts) for p in problems if (p.id, k) not in log.done]
    total = len(problems) * settings.attempts
    if not todo:
        return True
    capabilities = sandbox.probe()
    if "program" in settings.routes:
        # refused now rather than after the first model's answer
        sandbox.run("", allow_weak=settings.allow_weak)
    counter = energy.find()
    saved = answerer.prepare(solver.PREFIXES)
    log.session(
        {
            "started": clock.now(),
            "python": platform.python_version(),
            "system": machine.system(),
            "cpu": machine.cpu_name(),
            "engine": answerer.evidence(),
            "prefixes": {name: records.plain(prefix) for name, prefix in saved.items()},
            "sandbox": {
                "level": capabilities.level,
                "mechanisms": list(capabilities.mechanisms.names()),
            },
            "energy": counter.source if counter else energy.NOT_MEASURED,
        }
    )
    for problem, k in todo:
        if stop is not None and stop.wanted:
            return False
        with energy.Meter(counter) as meter:
            attempt = solver.solve(answerer, problem.problem, problem.sha256, k, settings)
        fields: dict[str, Any] = {
            "problem_sha256": problem.sha256,
            **attempt.as_record(),
            "gold": problem.answer,
            "grade": grade(attempt.answer, problem.answer),
            "energy": meter.reading().as_dict(),
            "finished": clock.now(),
        }
        record = log.attempt(problem.id, k, fields, attempt.as_transcript())
        on_attempt(Progress(len(log.done), total, record))
    return True


def grade(answer: int | None, gold: int) -> str:
    """`right`, `wrong`, or `none` where there is no answer."""
    if answer is None:
        return "none"
    return "right" if answer == gold else "wrong"
