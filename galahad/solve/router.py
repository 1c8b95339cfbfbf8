"""Which of the two routes to an answer goes first, by the words of a problem.

Both routes are tried; the program goes first unless the text speaks of a figure (`_FIGURE`) and not
of a finite count (`_COUNT`). `ROUTER` names this rule and its version.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Route = Literal["thought", "program"]
ROUTES: tuple[Route, ...] = ("thought", "program")
ROUTER = "program first unless a figure and no count, 1"

_FIGURE = re.compile(
    r"\b(?:triangle|circle|square|rectangle|hexagon|octagon|polygon|parallelogram|trapezoid|quadrilateral|sphere|cube|cone"
    r"|cylinder|tetrahedron|angle|perpendicular|parallel|tangent|radius|diameter|circumcircle|incircle|midpoint|area|volume"
    r"|perimeter|side length)s?\b",
    re.I,
)
_COUNT = re.compile(
    r"\b(?:how many|number "
    r"of|ways|probability|integers?|digits?|divisors?|divisible|remainder|modulo|primes?|subsets?"
    r"|permutations?|sequence|recurrence|ordered (?:pairs?|triples?|tuples?)|least "
    r"positive|coloring|colouring)\b",
    re.I,
)


class Order(NamedTuple):
    """The order of the routes, and the words of the problem that decided it."""

    routes: tuple[Route, ...]
    figure_words: tuple[str, ...]
    count_words: tuple[str, ...]


def route_order(problem: str) -> Order:
    """The rule at the top of this module applied to a problem's text."""
    figure = tuple(sorted({m[0].lower() for m in _FIGURE.finditer(problem)}))
    count = tuple(sorted({m[0].lower() for m in _COUNT.finditer(problem)}))
    program_first = not figure or bool(count)
    return Order(("program", "thought") if program_first else ("thought", "program"), figure, count)
