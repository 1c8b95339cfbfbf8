"""How well the router finds a bank's entries, and how well it abstains.

A query is *inside* when the bank holds its text or the text of the problem that it is a variant of,
else *outside*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from galahad.bank.bank import Bank
from galahad.errors import SuiteError
from galahad.measure.stats import Proportion
from galahad.problems.problem import Problem
from taliesin.host.findings import Finding, Result, Said, share
from taliesin.host.records import Record


class Query(NamedTuple):
    """`name` stands for the text in a record; `sha256` is None for a query that cannot be in any
    bank.
    """

    name: str
    text: str
    sha256: str | None


class Confusion(Record):
    """A query that went elsewhere than expected; None is to abstain."""

    query: str
    expected: str | None
    got: str | None
    reason: str


class RoutedQuery(Record):
    """Where a query went, and how much of it the best candidate covers."""

    query: str
    expected: str | None
    got: str | None
    coverage: float


class RoutingFigures(Result):
    """`inside`: routed to the right entry; `outside`: abstained. `queries` has all in order."""

    SCHEMA = "galahad.bank.route/1"
    inside: Proportion
    outside: Proportion
    confusions: tuple[Confusion, ...]
    threshold: float
    queries: tuple[RoutedQuery, ...]
    bank: str = ""

    def findings(self, file: str) -> Iterator[Finding]:
        own = any(query.query == query.expected for query in self.queries)
        confused = "; ".join(f"{one.query} went to {one.got or 'none'}" for one in self.confusions)
        yield Said(
            "C15",
            f"a bank's router: {share(self.inside.k, self.inside.n)} of "
            f"{'problems to themselves' if own else 'variants to their origin'}, "
            f"{share(self.outside.k, self.outside.n)} abstained outside; confusions: "
            f"{confused or 'none'}",
        )


def of_problems(problems: Sequence[Problem]) -> list[Query]:
    """Problems, and variants by the id of their origin (`ORIGIN~1`)."""
    return [Query(problem.id, problem.problem, problem.sha256) for problem in problems]


def of_lines(path: Path) -> list[Query]:
    """One query a line; blank lines and lines that begin with # do not count.

    Raises:
        SuiteError: not a UTF-8 text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SuiteError("the queries cannot be read", got=error, where=path) from error
    return [
        Query(f"line {n}", line, None)
        for n, line in enumerate(lines, 1)
        if line.strip() and line[0] != "#"
    ]


def measure(bank: Bank, queries: Sequence[Query], threshold: float) -> RoutingFigures:
    """Route every query."""
    router = bank.router()
    entries = {entry.sha256: entry.id for entry in bank.entries()}
    ids = set(entries.values())
    routed, confusions = [], []
    hits: dict[bool, list[bool]] = {True: [], False: []}  # by whether the query is inside
    for query in queries:
        origin = query.name.rpartition("~")[0]
        expected = entries.get(query.sha256 or "") or (
            origin if query.sha256 and origin in ids else None
        )
        route = router.route(query.text, threshold=threshold)
        got = route.block.name if route.block else None
        coverage = route.candidates[0].coverage if route.candidates else 0.0
        hits[expected is not None].append(got == expected)
        routed.append(RoutedQuery(query=query.name, expected=expected, got=got, coverage=coverage))
        if got != expected:
            reason = route.reason if got is None else f"{coverage:.2f}"
            confusions.append(
                Confusion(query=query.name, expected=expected, got=got, reason=reason)
            )
    return RoutingFigures(
        inside=Proportion.of(sum(hits[True]), len(hits[True])),
        outside=Proportion.of(sum(hits[False]), len(hits[False])),
        confusions=tuple(confusions),
        threshold=threshold,
        queries=tuple(routed),
        bank=str(bank.path),
    )
