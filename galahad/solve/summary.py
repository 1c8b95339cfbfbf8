"""What a run came to: figures from its log, and a page of Markdown.

Every figure is computed from the attempt records; intervals are Wilson's (scipy), with their n. A
run that is not finished is reported as far as it went, and says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from galahad.errors import RunLogError
from galahad.measure.stats import Proportion
from galahad.solve import solver
from galahad.solve.log import Record, Run
from galahad.solve.run import grade
from taliesin.host import console


@dataclass(frozen=True)
class ProblemResult:
    """One problem over its attempts. `causes` are the ends of the routes, `route:cause`, in order;
    `joules` a range, or None.
    """

    id: str
    gold: int
    answer: int | None
    grade: str
    confidence: solver.Confidence
    vote: str
    votes: int
    attempts: int
    causes: tuple[str, ...]
    tokens_in: int
    tokens_out: int
    seconds: float
    joules: tuple[float, float] | None


@dataclass(frozen=True)
class PassTotals:
    """Sums over all generations of one pass; tokens, seconds."""

    name: str
    n: int
    n_cut: int
    n_reused: int
    n_prefilled: int
    n_out: int
    reuse_seconds: float
    prefill_seconds: float
    decode_seconds: float


@dataclass(frozen=True)
class Savings:
    """What grafting the shared prefixes saved: `tokens` that were not prefilled again, and
    `seconds`.

    Seconds are the prefill time of each prefix, measured when it was saved, times its uses, less
    the time of putting it back and less the saving itself; None where no prefix was saved.
    """

    tokens: int
    uses: int
    seconds: float | None


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
    by_route: dict[str, Proportion]
    passes: tuple[PassTotals, ...]
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
        seconds = sum(p.decode_seconds for p in self.passes)
        return self.tokens_out / seconds if seconds else None

    @property
    def seconds_left(self) -> float | None:
        """At the mean time of the attempts so far."""
        return self.seconds / self.done * (self.total - self.done) if self.done else None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "complete": self.complete,
            "attempts_done": self.done,
            "attempts_total": self.total,
            "accuracy": self.accuracy._asdict(),
            "single_attempts": self.single._asdict(),
            "pass_at_k": self.coverage._asdict(),
            "matrix": {
                f"{confidence}/{grade}": n for (confidence, grade), n in sorted(self.matrix.items())
            },
            "routes": {route: proportion._asdict() for route, proportion in self.by_route.items()},
            "passes": {
                p.name: {k: v for k, v in vars(p).items() if k != "name"} for p in self.passes
            },
            "causes": {f"{route}:{cause}": n for (route, cause), n in sorted(self.causes.items())},
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "tokens_per_second": self.tokens_per_second,
            "seconds": self.seconds,
            "seconds_left": self.seconds_left,
            "grafted": vars(self.savings),
            "joules": None
            if self.joules is None
            else {"low": self.joules[0], "high": self.joules[1]},
            "energy": self.energy_source,
            "problems": [vars(result) for result in self.results],
        }


def summarise(run: Run) -> Summary:
    """The figures of a run so far.

    Raises:
        RunLogError: a record whose hash holds lacks a field: another program wrote it.
    """
    with as_promised(run):
        return _summary(run)


@contextmanager
def as_promised(run: Run) -> Iterator[None]:
    """What is read of the run's records inside must be there, and be of the kind that their schema
    promises.

    Raises:
        RunLogError: it is not.
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise RunLogError(
            "a record of the run lacks what its schema promises",
            got=f"{type(error).__name__}: {error}",
            where=run.path,
        ) from error


def _summary(run: Run) -> Summary:
    problems: dict[str, str] = run.header["suite"]["problems"]
    total = len(problems) * run.header["settings"]["attempts"]
    by_problem: dict[str, list[Record]] = {}
    for record in run.attempts:
        by_problem.setdefault(record["problem"], []).append(record)
    results = tuple(
        _result(id_, by_problem[id_]) for id_ in sorted(problems, key=_natural) if id_ in by_problem
    )
    right = sum(result.grade == "right" for result in results)
    routes = [(route, record["gold"]) for record in run.attempts for route in record["routes"]]
    names = [name for name in solver.ROUTES if any(route["route"] == name for route, _ in routes)]
    return Summary(
        run,
        total,
        results,
        Proportion.of(right, len(results)),
        Proportion.of(sum(r["grade"] == "right" for r in run.attempts), len(run.attempts)),
        Proportion.of(
            sum(any(r["grade"] == "right" for r in records) for records in by_problem.values()),
            len(results),
        ),
        Counter((result.confidence, result.grade) for result in results),
        {
            name: Proportion.of(
                sum(route["answer"] == gold for route, gold in routes if route["route"] == name),
                sum(route["route"] == name for route, _ in routes),
            )
            for name in names
        },
        tuple(_pass_totals(run.attempts)),
        Counter(
            (route["route"], _cause(route, record["gold"]))
            for record in run.attempts
            for route in record["routes"]
        ),
        Counter(tuple(record["order"]) for record in run.attempts),
        _savings(run),
        sum(record["tokens_in"] for record in run.attempts),
        sum(record["tokens_out"] for record in run.attempts),
        sum(record["seconds"] for record in run.attempts),
        *_energy(run.attempts),
    )


def _natural(id_: str) -> list[tuple[int, str]]:
    """Order in which `p2` comes before `p10`."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", id_)
    ]


def _result(id_: str, records: Sequence[Record]) -> ProblemResult:
    outcome = solver.outcome((record["answer"], record["confidence"]) for record in records)
    gold = records[0]["gold"]
    causes = Counter(
        f"{route['route']}:{_cause(route, gold)}"
        for record in records
        for route in record["routes"]
    )
    return ProblemResult(
        id_,
        gold,
        outcome.answer,
        grade(outcome.answer, gold),
        outcome.confidence,
        outcome.vote.outcome,
        outcome.vote.votes,
        len(records),
        tuple(f"{cause} x{n}" if n > 1 else cause for cause, n in causes.items()),
        sum(record["tokens_in"] for record in records),
        sum(record["tokens_out"] for record in records),
        sum(record["seconds"] for record in records),
        _energy(records)[0],
    )


def _cause(route: Record, gold: int) -> str:
    """How a route ended: `right`, `wrong-answer`, or the cause for which it has no answer."""
    if route["answer"] is None:
        return str(route["cause"])
    return "right" if route["answer"] == gold else "wrong-answer"


def _pass_totals(attempts: Iterable[Record]) -> Iterable[PassTotals]:
    passes = [one for record in attempts for one in record["passes"]]
    for name in solver.PREFIXES:
        own = [one for one in passes if one["name"] == name]
        if own:
            yield PassTotals(
                name,
                len(own),
                sum(one["finish"] == "length" for one in own),
                *(sum(one[key] for one in own) for key in ("n_reused", "n_prefilled", "n_out")),
                *(
                    sum(one[key] for one in own)
                    for key in ("reuse_seconds", "prefill_seconds", "decode_seconds")
                ),
            )


def _savings(run: Run) -> Savings:
    passes = [one for record in run.attempts for one in record["passes"] if one["n_reused"]]
    tokens = sum(one["n_reused"] for one in passes)
    saved = [prefix for session in run.sessions for prefix in session["prefixes"].items()]
    if not saved:
        return Savings(tokens, len(passes), None)
    prefill = {name: prefix["prefill_seconds"] for name, prefix in saved}
    spent = sum(prefix["prefill_seconds"] + prefix["save_seconds"] for _, prefix in saved)
    gained = sum(prefill[one["name"]] - one["reuse_seconds"] for one in passes)
    return Savings(tokens, len(passes), gained - spent)


def _energy(attempts: Sequence[Record]) -> tuple[tuple[float, float] | None, str]:
    readings = [record["energy"] for record in attempts]
    measured = [reading for reading in readings if reading["joules"] is not None]
    if not readings or len(measured) < len(readings):
        return None, readings[0][
            "source"
        ] if readings and not measured else f"{len(measured)} of {len(readings)} measured"
    return (sum(r["low"] for r in measured), sum(r["high"] for r in measured)), measured[0][
        "source"
    ]


# -- Markdown --------------------------------------------------------------------------------------


def markdown(summary: Summary) -> str:
    """The report as Markdown, for a reader. Raises RunLogError as `summarise`."""
    with as_promised(summary.run):
        sections = (
            _head(summary),
            _results(summary),
            _costs(summary),
            _causes(summary),
            _list(summary),
        )
    return "\n\n".join(section for section in sections if section)


def _head(summary: Summary) -> str:
    header = summary.run.header
    engine, settings, suite = header["engine"], header["settings"], header["suite"]
    model = f"{engine['model']} ({engine['engine']}" + (
        f", SHA-256 {engine['model_sha256'][:12]})" if "model_sha256" in engine else ")"
    )
    budget = "none" if settings["budget"] is None else f"{settings['budget']} tokens an attempt"
    lines = [
        f"# Run on {suite['name']}",
        "",
        f"- model: {model}",
        f"- suite: {len(suite['problems'])} problems, SHA-256 {suite['sha256'][:12]}",
        f"- attempts: {settings['attempts']} a problem, temperature {settings['temperature']}, "
        f"seed {settings['seed']}",
        f"- tokens at most: thought {settings['thought_tokens']}, check "
        f"{settings['check_tokens']}, "
        f"program {settings['program_tokens']}; budget: {budget}",
        f"- router: {header['router']}",
        f"- rule: {header['rule']}",
        f"- started {header['created']}, {len(summary.run.sessions)} session(s), prompts "
        f"{header['prompts_sha256'][:12]}",
    ]
    if not summary.complete:
        lines.append(f"- **not finished: {summary.done} of {summary.total} attempts**")
    return "\n".join(lines)


def _results(summary: Summary) -> str:
    k = summary.run.header["settings"]["attempts"]
    lines = [
        "## Accuracy",
        "",
        f"- {'right' if k == 1 else f'maj@{k}, a tie is no answer'}: {summary.accuracy}",
    ]
    if k > 1:
        lines.append(f"- single attempts: {summary.single}")
        lines.append(f"- right in at least one attempt: {summary.coverage}")
    lines += [
        f"- {name} route alone: {proportion}" for name, proportion in summary.by_route.items()
    ]
    rows = [
        (confidence, *(summary.matrix[confidence, grade] for grade in ("right", "wrong", "none")))
        for confidence in ("confident", "uncertain")
    ]
    return "\n".join(
        [*lines, "", console.markdown_table(["problems", "right", "wrong", "no answer"], rows)]
    )


def _costs(summary: Summary) -> str:
    n = max(len(summary.results), 1)
    rows = [
        (
            p.name,
            p.n,
            f"{p.n_out / n:.0f}",
            f"{(p.n_prefilled + p.n_reused) / n:.0f}",
            f"{p.n_cut}",
            f"{p.decode_seconds / n:.1f}",
            f"{p.prefill_seconds / n:.1f}",
        )
        for p in summary.passes
    ]
    speed = (
        f"{summary.tokens_per_second:.1f} tokens/s while decoding"
        if summary.tokens_per_second
        else "no token decoded"
    )
    saved = summary.savings
    grafted = (
        f"{saved.tokens} prompt tokens came from blocks in {saved.uses} grafts"
        + ("" if saved.seconds is None else _difference(saved.seconds))
        if saved.uses
        else "no prefix was grafted"
    )
    joules = (
        f"{summary.joules[0]:.0f} to {summary.joules[1]:.0f} J ({summary.energy_source})"
        if summary.joules
        else summary.energy_source
    )
    headers = [
        "pass",
        "generations",
        "tokens out",
        "tokens in",
        "cut off",
        "decoding, s",
        "prefill, s",
    ]
    return "\n".join(
        [
            "## Cost (mean per problem; generations and cut off are counts)",
            "",
            console.markdown_table(headers, rows),
            "",
            f"- in all: {summary.tokens_out} tokens out, {summary.tokens_in} in, "
            f"{summary.seconds:.0f} s; {speed}",
            f"- prefixes: {grafted}",
            f"- energy: {joules}",
            "- order chosen: "
            + ", ".join(f"{' then '.join(o)} {n}" for o, n in summary.orders.most_common()),
        ]
    )


def _difference(seconds: float) -> str:
    more_or_less = "less" if seconds >= 0 else "more"
    return (
        f", {abs(seconds):.1f} s {more_or_less} than prefilling them each time, the saving included"
    )


def _causes(summary: Summary) -> str:
    rows = [
        (route, cause, n)
        for (route, cause), n in sorted(
            summary.causes.items(), key=lambda item: (item[0][0], -item[1])
        )
    ]
    return "## How the routes ended (attempts)\n\n" + console.markdown_table(
        ["route", "end", "attempts"], rows
    )


def _list(summary: Summary) -> str:
    rows = [
        (
            r.id,
            "-" if r.answer is None else r.answer,
            r.gold,
            r.grade if r.vote != "no-majority" else "no majority",
            r.confidence,
            ", ".join(r.causes),
            r.tokens_out,
            f"{r.seconds:.0f}",
        )
        for r in summary.results
    ]
    headers = ["problem", "answer", "gold", "grade", "confidence", "routes", "tokens out", "s"]
    return "## Problems\n\n" + console.markdown_table(headers, rows)
