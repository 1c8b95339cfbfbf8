"""What a run came to: figures from its log. `galahad.solve.markdown` lays them out.

Every figure is computed from the attempt records; intervals are Wilson's (scipy), with their n. A
run that is not finished is reported as far as it went, and says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from galahad.measure.arm import Grade
from galahad.measure.stats import Proportion
from galahad.solve import solver
from galahad.solve.log import Run
from galahad.solve.prompts import PASSES, Pass
from galahad.solve.records import Attempt
from galahad.solve.router import ROUTES, Route
from galahad.solve.run import grade
from galahad.solve.solver import PassRecord, RouteRecord
from taliesin.host import records
from taliesin.host.findings import Finding, Result, Said
from taliesin.host.records import Record


class ProblemResult(Record):
    """One problem over its attempts. `causes` are the ends of the routes, `route:cause`, in order;
    `joules` a range, or None.
    """

    id: str
    gold: int
    answer: int | None
    grade: Grade
    confidence: solver.Confidence
    vote: str
    votes: int
    attempts: int
    causes: tuple[str, ...]
    tokens_in: int
    tokens_out: int
    seconds: float
    joules: tuple[float, float] | None


class PassTotals(Record):
    """Sums over all generations of one pass; tokens, seconds."""

    n: int
    n_cut: int
    n_reused: int
    n_prefilled: int
    n_out: int
    reuse_seconds: float
    prefill_seconds: float
    decode_seconds: float


class Savings(Record):
    """What grafting the shared prefixes saved: `tokens` that were not prefilled again, and
    `seconds`.

    Seconds are the prefill time of each prefix, measured when it was saved, times its uses, less
    the time of putting it back and less the saving itself; None where no prefix was saved.
    """

    tokens: int
    uses: int
    seconds: float | None


class JoulesRange(Record):
    low: float
    high: float


class RunFigures(Result):
    """The figures of a run as `galahad solve --json` prints them; `report` and `status` have the
    same fields and more, or without `problems`.

    `matrix` counts problems by "confidence/grade", `causes` the ends of routes by "route:cause";
    `passes` and `routes` are by their names.
    """

    SCHEMA = "galahad.solve/1"
    complete: bool
    attempts_done: int
    attempts_total: int
    accuracy: Proportion
    single_attempts: Proportion
    pass_at_k: Proportion
    matrix: dict[str, int]
    routes: dict[Route, Proportion]
    passes: dict[Pass, PassTotals]
    causes: dict[str, int]
    tokens_in: int
    tokens_out: int
    tokens_per_second: float | None
    seconds: float
    seconds_left: float | None
    grafted: Savings
    joules: JoulesRange | None
    energy: str
    problems: tuple[ProblemResult, ...]
    run: str = ""

    def findings(self, file: str) -> Iterator[Finding]:
        matrix = ", ".join(
            f"{n} {key.replace('/', ' and ')}" for key, n in sorted(self.matrix.items())
        )
        state = (
            ""
            if self.complete
            else f" (stopped after {self.attempts_done} of {self.attempts_total} attempts)"
        )
        yield Said(
            "C8",
            f"{self.run}{state}: {self.accuracy.short}; {matrix}; {self.tokens_out} tokens out",
        )


class ReportFigures(RunFigures):
    """The figures of the first run of `galahad report --json`; `comparison` where there are two."""

    SCHEMA = "galahad.report/1"
    others: tuple[RunFigures, ...] = ()
    comparison: dict[str, Any] | None = None


@dataclass(frozen=True)
class Summary:
    """The figures of a run. `matrix` maps (confidence, grade) to problems; `single` is the accuracy
    of single attempts.
    """

    run: Run
    total: int
    results: tuple[ProblemResult, ...]
    accuracy: Proportion
    single: Proportion
    coverage: Proportion
    matrix: Counter[tuple[str, str]]
    by_route: dict[Route, Proportion]
    passes: dict[Pass, PassTotals]
    causes: Counter[tuple[str, str]]
    orders: Counter[tuple[str, ...]]
    savings: Savings
    tokens_in: int
    tokens_out: int
    seconds: float
    joules: tuple[float, float] | None
    energy_source: str

    @property
    def done(self) -> int:
        return len(self.run.attempts)

    @property
    def complete(self) -> bool:
        return self.done == self.total

    @property
    def tokens_per_second(self) -> float | None:
        """Decoded tokens over decoding time."""
        seconds = sum(totals.decode_seconds for totals in self.passes.values())
        return self.tokens_out / seconds if seconds else None

    @property
    def seconds_left(self) -> float | None:
        """At the mean time of the attempts so far."""
        return self.seconds / self.done * (self.total - self.done) if self.done else None

    def figures(self) -> RunFigures:
        return RunFigures(
            complete=self.complete,
            attempts_done=self.done,
            attempts_total=self.total,
            accuracy=self.accuracy,
            single_attempts=self.single,
            pass_at_k=self.coverage,
            matrix={
                f"{confidence}/{grade}": n for (confidence, grade), n in sorted(self.matrix.items())
            },
            routes=self.by_route,
            passes=self.passes,
            causes={f"{route}:{cause}": n for (route, cause), n in sorted(self.causes.items())},
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
            tokens_per_second=self.tokens_per_second,
            seconds=self.seconds,
            seconds_left=self.seconds_left,
            grafted=self.savings,
            joules=None
            if self.joules is None
            else JoulesRange(low=self.joules[0], high=self.joules[1]),
            energy=self.energy_source,
            problems=self.results,
        )

    def as_dict(self) -> dict[str, Any]:
        """The figures, JSON-ready; the run's path is the caller's to name."""
        fields: dict[str, Any] = records.plain(self.figures())
        del fields["run"]
        return fields


def summarise(run: Run) -> Summary:
    """The figures of a run so far."""
    suite = run.header.suite.problems
    by_problem: dict[str, list[Attempt]] = {}
    for attempt in run.attempts:
        by_problem.setdefault(attempt.problem, []).append(attempt)
    results = tuple(
        _result(id_, by_problem[id_]) for id_ in sorted(suite, key=_natural) if id_ in by_problem
    )
    ends = [(route, attempt.gold) for attempt in run.attempts for route in attempt.routes]
    joules, energy_source = _energy(run.attempts)
    return Summary(
        run=run,
        total=len(suite) * run.header.settings.attempts,
        results=results,
        accuracy=_share(result.grade == "right" for result in results),
        single=_share(attempt.grade == "right" for attempt in run.attempts),
        coverage=_share(
            any(attempt.grade == "right" for attempt in attempts)
            for id_, attempts in by_problem.items()
            if id_ in suite
        ),
        matrix=Counter((result.confidence, result.grade) for result in results),
        by_route={
            name: _share(route.answer == gold for route, gold in ends if route.route == name)
            for name in ROUTES
            if any(route.route == name for route, _ in ends)
        },
        passes=_pass_totals(run.attempts),
        causes=Counter((route.route, _cause(route, gold)) for route, gold in ends),
        orders=Counter(attempt.order for attempt in run.attempts),
        savings=_savings(run),
        tokens_in=sum(attempt.tokens_in for attempt in run.attempts),
        tokens_out=sum(attempt.tokens_out for attempt in run.attempts),
        seconds=sum(attempt.seconds for attempt in run.attempts),
        joules=joules,
        energy_source=energy_source,
    )


def _share(hits: Iterable[bool]) -> Proportion:
    listed = list(hits)
    return Proportion.of(sum(listed), len(listed))


def _natural(id_: str) -> list[tuple[int, str]]:
    """Order in which `p2` comes before `p10`."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", id_)
    ]


def _result(id_: str, attempts: Sequence[Attempt]) -> ProblemResult:
    outcome = solver.outcome((attempt.answer, attempt.confidence) for attempt in attempts)
    gold = attempts[0].gold
    causes = Counter(
        f"{route.route}:{_cause(route, gold)}" for attempt in attempts for route in attempt.routes
    )
    return ProblemResult(
        id=id_,
        gold=gold,
        answer=outcome.answer,
        grade=grade(outcome.answer, gold),
        confidence=outcome.confidence,
        vote=outcome.vote.outcome,
        votes=outcome.vote.votes,
        attempts=len(attempts),
        causes=tuple(f"{cause} x{n}" if n > 1 else cause for cause, n in causes.items()),
        tokens_in=sum(attempt.tokens_in for attempt in attempts),
        tokens_out=sum(attempt.tokens_out for attempt in attempts),
        seconds=sum(attempt.seconds for attempt in attempts),
        joules=_energy(attempts)[0],
    )


def _cause(route: RouteRecord, gold: int) -> str:
    """How a route ended: `right`, `wrong-answer`, or the cause for which it has no answer."""
    if route.answer is None:
        return route.cause
    return "right" if route.answer == gold else "wrong-answer"


def _pass_totals(attempts: Iterable[Attempt]) -> dict[Pass, PassTotals]:
    generations: dict[Pass, list[PassRecord]] = {name: [] for name in PASSES}
    for attempt in attempts:
        for generation in attempt.passes:
            generations[generation.name].append(generation)
    return {
        name: PassTotals(
            n=len(own),
            n_cut=sum(generation.finish == "length" for generation in own),
            n_reused=sum(generation.n_reused for generation in own),
            n_prefilled=sum(generation.n_prefilled for generation in own),
            n_out=sum(generation.n_out for generation in own),
            reuse_seconds=sum(generation.reuse_seconds for generation in own),
            prefill_seconds=sum(generation.prefill_seconds for generation in own),
            decode_seconds=sum(generation.decode_seconds for generation in own),
        )
        for name, own in generations.items()
        if own
    }


def _savings(run: Run) -> Savings:
    uses = [
        generation
        for attempt in run.attempts
        for generation in attempt.passes
        if generation.n_reused
    ]
    tokens = sum(generation.n_reused for generation in uses)
    saved = [prefix for session in run.sessions for prefix in session.prefixes.items()]
    if not saved:
        return Savings(tokens=tokens, uses=len(uses), seconds=None)
    prefill_seconds = {name: prefix.prefill_seconds for name, prefix in saved}
    spent = sum(prefix.prefill_seconds + prefix.save_seconds for _, prefix in saved)
    gained = sum(
        prefill_seconds.get(generation.name, 0.0) - generation.reuse_seconds for generation in uses
    )
    return Savings(tokens=tokens, uses=len(uses), seconds=gained - spent)


def _energy(attempts: Sequence[Attempt]) -> tuple[tuple[float, float] | None, str]:
    """The range over all attempts, None where one of them has none; and the source, or why."""
    readings = [attempt.energy for attempt in attempts]
    ranges = [(r.low, r.high) for r in readings if r.low is not None and r.high is not None]
    if not readings or len(ranges) < len(readings):
        source = f"{len(ranges)} of {len(readings)} measured"
        return None, readings[0].source if readings and not ranges else source
    return (sum(low for low, _ in ranges), sum(high for _, high in ranges)), readings[0].source
