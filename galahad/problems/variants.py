"""Variants of a problem: the same structure with other numbers, each answer found in three
independent ways.

Numbers are drawn from the ranges of the problem's parameters, or taken from its list of candidates
where they depend on each other; the same seed gives the same variants. A draw is kept only if all
three programs agree in the sandbox on an integer in 0..999, and everything else is kept as a
rejection with its reason. That a problem has no variant is a result too.

This module does not know models, nor whether a variant is harder than the problem.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from galahad.errors import SuiteError
from galahad.measure.canonical import sha256_of
from galahad.problems import templates
from galahad.problems.problem import GOLDS, Gold, Problem, text_sha256
from galahad.problems.solutions import Solution
from galahad.problems.templates import CrossCheck, Rejected, Run, Template, Variants, Way
from taliesin.host.findings import Amount, Finding, Result, Said
from taliesin.host.records import Record


@dataclass(frozen=True)
class Variant:
    """A problem with its origin. `values` are its numbers, `by_way` what each program printed,
    `programs` their hashes.
    """

    problem: Problem
    origin: str
    origin_sha256: str
    seed: int
    values: Mapping[str, int]
    by_way: Mapping[str, int]
    programs: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """A row that is a problem for `problems.load`, with the proof beside it."""
        return {
            **self.problem.as_dict(),
            "origin": self.origin,
            "origin_sha256": self.origin_sha256,
            "seed": self.seed,
            "values": dict(self.values),
            "by_way": dict(self.by_way),
            "programs": dict(self.programs),
        }


def draw(template: Template, seed: int, count: int, run: Run) -> Variants:
    """Up to `count` agreed variants, and the draws that were rejected.

    Raises:
        SandboxUnavailable: `run` cannot isolate a program.
    """
    if not isinstance(template, Solution) or not template.candidates:
        return templates.variants(template, seed, count, run)
    proposals = list(template.candidates)
    random.Random(f"{template.id}/{seed}").shuffle(proposals)
    found: list[CrossCheck] = []
    rejected: list[CrossCheck] = []
    for values in proposals:
        if len(found) == count:
            break
        checked = templates.cross_check(template, values, run)
        (found if checked.agreed else rejected).append(checked)
    return Variants(tuple(found), tuple(rejected))


def name(template: Template, problem: Problem, seed: int, drawn: Variants) -> list[Variant]:
    """The agreed draws as problems, ids `ORIGIN~1`, `ORIGIN~2`, ..."""
    sources = {way: sha256_of(source) for way, source in template.sources.items()}
    made = []
    for number, one in enumerate(drawn.found, 1):
        assert one.answer is not None
        variant = Problem.of(f"{problem.id}~{number}", template.text(one.values), one.answer)
        by_way = {way: value for way, value in one.by_way.items() if value is not None}
        made.append(Variant(variant, problem.id, problem.sha256, seed, one.values, by_way, sources))
    return made


def record(template: Template, problem: Problem, seed: int, drawn: Variants) -> dict[str, Any]:
    """What was drawn for one problem, without any text: JSON-ready."""
    none = template.no_variant if isinstance(template, Solution) and not drawn.found else ""
    return {
        "origin": problem.id,
        "origin_sha256": problem.sha256,
        "seed": seed,
        "found": [
            {"values": dict(v.values), "answer": v.answer, "by_way": dict(v.by_way)}
            for v in drawn.found
        ],
        "rejected": [{"values": dict(v.values), "reason": v.reason} for v in drawn.rejected],
        "no_variant": none or ("" if drawn.found else "no draw was agreed on"),
    }


def dumps(variants: list[Variant]) -> str:
    """The text of a variants file: JSON Lines."""
    return "".join(json.dumps(variant.as_dict(), ensure_ascii=False) + "\n" for variant in variants)


def load(path: Path) -> tuple[Variant, ...]:
    """The variants of a file that `dumps` wrote.

    Raises:
        SuiteError: not such a file, or a text under another hash.
    """
    try:
        # Not splitlines: U+2028 and its like stand unescaped in a problem's text.
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SuiteError("the variants cannot be read", got=error, where=path) from error
    found: list[Variant] = []
    ids: set[str] = set()
    for number, line in enumerate(lines if any(lines) else (), 1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
            if type(row["answer"]) is not int or row["answer"] not in GOLDS:
                raise ValueError(f"the answer is no integer in 0..999: {row['answer']!r}")
            problem = Problem(
                str(row["id"]), str(row["problem"]), row["answer"], str(row["sha256"])
            )
            found.append(
                Variant(
                    problem,
                    str(row["origin"]),
                    str(row["origin_sha256"]),
                    int(row["seed"]),
                    {str(k): int(v) for k, v in row["values"].items()},
                    {str(k): int(v) for k, v in row["by_way"].items()},
                    {str(k): str(v) for k, v in row["programs"].items()},
                )
            )
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise SuiteError(
                "not a variant",
                expected="a line that galahad isomorph wrote",
                got=repr(error)[:80],
                where=where,
            ) from error
        if text_sha256(problem.problem) != problem.sha256:
            raise SuiteError("the variant's text has another hash", where=where)
        if problem.id in ids:
            raise SuiteError("two variants have the same id", got=problem.id, where=where)
        ids.add(problem.id)
    if not found:
        raise SuiteError("no variants there", where=path)
    return tuple(found)


# -- what `galahad isomorph` prints ----------------------------------------------------------------


class FoundVariant(Record):
    """A variant on which all programs agree."""

    values: dict[str, int]
    answer: Gold
    by_way: dict[Way, int]


class VariantsRecord(Record):
    """The variants of one problem (`record`)."""

    origin: str
    origin_sha256: str
    seed: int
    found: list[FoundVariant]
    rejected: list[Rejected]
    no_variant: str


class VariantsResult(Result):
    """The variants of each problem."""

    SCHEMA = "galahad.isomorph/1"
    seed: int
    count: Amount
    problems: list[VariantsRecord]

    def findings(self, file: str) -> Iterator[Finding]:
        none = ", ".join(one.origin for one in self.problems if not one.found)
        n_found = sum(bool(one.found) for one in self.problems)
        yield Said(
            "C13",
            f"{n_found} of {len(self.problems)} problems have a variant on which three programs "
            "agree" + (f"; none: {none}" if none else ""),
        )
