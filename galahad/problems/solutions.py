"""Programs that we wrote for problems whose text is somebody else's: found by the SHA-256 of the
text, kept without it.

A solution is a folder with `program.yaml` and three independent programs, as for
`galahad.problems.templates`. Instead of a statement it holds, for each number of the problem, the
value and the place (a character offset) where the text states it; so whoever has the text gets a
template out of both. The hash pins the text, so the offsets cannot miss.

This module knows no models. What a solution says counts for nothing before the sandbox has run it
(`templates.cross_check`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from galahad.errors import SuiteError
from galahad.problems.problem import Gold, text_sha256
from galahad.problems.templates import Constraint, Domain, Parameter, Template, Values, read_fields
from galahad.responses import program as programs
from taliesin.host.kinds import Count, Digest
from taliesin.host.records import Record

_FILE = "program.yaml"


class NumberFields(Record, rename={"low": "from", "high": "to"}):
    """A number in `program.yaml`: its value, the offset in the text, and the range of variants."""

    value: int
    at: Count | None = None
    stated_only: bool = False
    low: int | None = None
    high: int | None = None


class SolutionFile(Record):
    """`program.yaml`; `sha256` is that of the problem's text. The other fields are `Solution`'s."""

    SCHEMA = "galahad.solution/1"
    id: str
    source: str
    sha256: Digest
    answer: Gold
    domain: Domain
    numbers: dict[str, NumberFields]
    constraints: tuple[dict[Constraint, tuple[str, ...]], ...] = ()
    candidates: tuple[dict[str, int], ...] = ()
    no_variant: str = ""


@dataclass(frozen=True, slots=True)
class Solution(Template):
    """A template whose statement is empty until `bind` gave it the text of that hash.

    `places` maps numbers to offsets in the text; numbers in `stated_only` follow from others and
    are no parameter of the programs. `candidates` are sets of other numbers that may make a
    problem, used instead of ranges where the numbers depend on each other. `no_variant` says why
    there is none, if there is none.
    """

    source: str
    sha256: str
    places: Mapping[str, int]
    stated_only: frozenset[str]
    candidates: tuple[Mapping[str, int], ...]
    no_variant: str

    def text(self, values: Values | None = None) -> str:
        """The bound text with `values` at their places."""
        chosen = {**self.values, **(values or {})}
        text = self.statement
        for name, at in sorted(self.places.items(), key=lambda place: -place[1]):
            text = text[:at] + str(chosen[name]) + text[at + len(str(self.values[name])) :]
        return text

    def program(self, way: str, values: Values | None = None) -> str:
        chosen = {**self.values, **(values or {})}
        return programs.substitute(
            self.sources[way],
            {name: value for name, value in chosen.items() if name not in self.stated_only},
        )

    def bind(self, text: str) -> Solution:
        """The same with its text.

        Raises:
            SuiteError: not that text, or a number does not stand where it should.
        """
        if text_sha256(text) != self.sha256:
            raise SuiteError(
                "the program is for another text", expected=self.sha256, got=text_sha256(text)
            )
        for name, at in self.places.items():
            digits = str(self.values[name])
            around = text[max(0, at - 1) : at + len(digits) + 1]
            if text[at : at + len(digits)] != digits or re.sub(r"\D", "", around) != digits:
                raise SuiteError(
                    f"{name} is not at its place", expected=digits, got=ascii(around), where=self.id
                )
        return replace(self, statement=text)


def read_all(root: Path | None = None) -> dict[str, Solution]:
    """The solutions below `root`, by default those that ship with the toolkit, by the SHA-256 of
    the problem's text.

    Raises:
        SuiteError: none there, one that is not well formed, or two for one text.
    """
    if root is None:
        from taliesin.host.places import data_dir

        root = data_dir() / "programs"
    found: dict[str, Solution] = {}
    for path in sorted(root.rglob(_FILE)):
        solution = read(path.parent)
        if solution.sha256 in found:
            raise SuiteError(
                "two solutions for one text", got=f"{found[solution.sha256].id} and {solution.id}"
            )
        found[solution.sha256] = solution
    if not found:
        raise SuiteError("no solutions there", expected=f"folders with {_FILE}", where=root)
    return found


def read(folder: Path) -> Solution:
    """The solution in `folder`.

    Raises:
        SuiteError: a missing file or field, or programs whose parameters are not the numbers.
    """
    path = folder / _FILE
    fields, sources = read_fields(path, SolutionFile, what="the solution")
    numbers = fields.numbers
    solution = Solution(
        id=fields.id,
        domain=fields.domain,
        difficulty=3,
        answer=fields.answer,
        statement="",
        parameters=tuple(
            Parameter(
                name,
                n.value,
                n.value if n.low is None else n.low,
                n.value if n.high is None else n.high,
            )
            for name, n in numbers.items()
        ),
        constraints=tuple(pair for one in fields.constraints for pair in one.items()),
        sources=sources,
        source=fields.source,
        sha256=fields.sha256,
        places={name: n.at for name, n in numbers.items() if n.at is not None},
        stated_only=frozenset(name for name, n in numbers.items() if n.stated_only),
        candidates=fields.candidates,
        no_variant=fields.no_variant.strip(),
    )
    trouble = _trouble(solution, folder)
    if trouble:
        raise SuiteError(trouble, where=path)
    return solution


def _trouble(solution: Solution, folder: Path) -> str | None:
    values = solution.values
    if solution.id != folder.name:
        return f"the folder of {solution.id} has another name"
    if unknown := {name for one in solution.candidates for name in one} - set(values):
        return f"candidates for unknown numbers: {', '.join(sorted(unknown))}"
    if unknown := {name for _, names in solution.constraints for name in names} - set(values):
        return f"constraints on unknown numbers: {', '.join(sorted(unknown))}"
    wanted = {name: value for name, value in values.items() if name not in solution.stated_only}
    for way, source in solution.sources.items():
        if programs.parse(source) is None or programs.parameters(source) != wanted:
            return f"{way}.py: the parameters of solve are not the numbers"
    return None
