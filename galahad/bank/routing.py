"""How well the router finds a bank's entries, and how well it abstains.

A query is *inside* when the bank holds its text or the text of the problem that it is a variant of,
else *outside*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from galahad.bank.bank import Bank
from galahad.errors import SuiteError
from galahad.measure.stats import Proportion
from galahad.problems.problem import Problem


class Query(NamedTuple):
    """`name` stands for the text in a record; `sha256` is None for a query that cannot be in any
    bank.
    """

    name: str
    text: str
    sha256: str | None


class Confusion(NamedTuple):
    """A query that went elsewhere than expected; None is to abstain."""

    query: str
    expected: str | None
    got: str | None
    reason: str


@dataclass(frozen=True)
class Figures:
    """`inside`: routed to the right entry; `outside`: abstained. `lines` has every query in
    order.
    """

    inside: Proportion
    outside: Proportion
    confusions: tuple[Confusion, ...]
    lines: tuple[dict[str, Any], ...]
    threshold: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "inside": self.inside._asdict(),
            "outside": self.outside._asdict(),
            "confusions": [one._asdict() for one in self.confusions],
            "threshold": self.threshold,
            "queries": list(self.lines),
        }


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


def measure(bank: Bank, queries: Sequence[Query], threshold: float) -> Figures:
    """Route every query."""
    router = bank.router()
    entries = {entry.sha256: entry.id for entry in bank.entries()}
    ids = set(entries.values())
    lines, confusions = [], []
    right = {True: 0, False: 0}
    total = {True: 0, False: 0}
    for query in queries:
        origin = query.name.rpartition("~")[0]
        expected = entries.get(query.sha256 or "") or (
            origin if query.sha256 and origin in ids else None
        )
        found = router.route(query.text, threshold=threshold)
        got = found.block.name if found.block else None
        inside = expected is not None
        total[inside] += 1
        right[inside] += got == expected
        coverage = found.candidates[0].coverage if found.candidates else 0.0
        lines.append({"query": query.name, "expected": expected, "got": got, "coverage": coverage})
        if got != expected:
            confusions.append(
                Confusion(
                    query.name, expected, got, found.reason if got is None else f"{coverage:.2f}"
                )
            )
    return Figures(
        Proportion.of(right[True], total[True]),
        Proportion.of(right[False], total[False]),
        tuple(confusions),
        tuple(lines),
        threshold,
    )
