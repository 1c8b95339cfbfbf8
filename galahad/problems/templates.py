"""Our own problems as templates: a statement with parameters, and three independent programs that
each print the answer.

A template is a folder with `problem.yaml` and the programs `solve.py` (the reference), `second.py`
and `third.py`, each a `solve(param=...)` over the same parameters. An answer counts only when all
three agree, in the sandbox, on an integer in 0..999; so it is for the problem itself, and so for
every variant that `variants` draws from the parameters' ranges.

This module does not know models; it knows of the sandbox only that a source can be run (`Run`).
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from pathlib import Path
from typing import Literal, TypeVar, get_args

from galahad.errors import SuiteError
from galahad.problems.problem import GOLDS, Gold, Problem, Suite, text_sha256
from galahad.responses import integer as answers
from galahad.responses import program as programs
from galahad.responses.integer import Execution
from taliesin.host import records, strict_yaml
from taliesin.host.kinds import Count, Digest
from taliesin.host.records import Record

Way = Literal["solve", "second", "third"]
WAYS: tuple[Way, ...] = get_args(Way)
Domain = Literal["algebra", "combinatorics", "geometry", "number theory"]
Constraint = Literal["distinct", "increasing", "coprime"]

Run = Callable[[str], Execution]
Values = Mapping[str, int]
F = TypeVar("F", bound=Record)

_PLACEHOLDER = re.compile(r"\[\[(\w+)\]\]")
# Draws per wanted variant before a template counts as having no more.
_PATIENCE = 20


class ParameterFields(Record, rename={"low": "from", "high": "to"}):
    """A parameter in `problem.yaml`."""

    value: int
    low: int
    high: int


class TemplateFile(Record):
    """`problem.yaml`. A constraint names its kind and the parameters that it is about."""

    SCHEMA = "galahad.template/1"
    id: str
    domain: Domain
    difficulty: Literal[1, 2, 3]
    answer: Gold
    statement: str
    parameters: dict[str, ParameterFields]
    constraints: tuple[dict[Constraint, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Parameter:
    """An integer of the statement: its value in the problem itself, and the inclusive range for
    variants.
    """

    name: str
    value: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Template:
    """`difficulty` is 1 (a small coder model can write the program), 2, or 3 (needs an idea).
    `sources` is by way.
    """

    id: str
    domain: str
    difficulty: int
    answer: int
    statement: str
    parameters: tuple[Parameter, ...]
    constraints: tuple[tuple[Constraint, tuple[str, ...]], ...]
    sources: Mapping[str, str]

    @property
    def values(self) -> dict[str, int]:
        """The parameters of the problem itself."""
        return {parameter.name: parameter.value for parameter in self.parameters}

    def text(self, values: Values | None = None) -> str:
        """The statement with `values`, by default those of the problem itself."""
        chosen = {**self.values, **(values or {})}
        return _PLACEHOLDER.sub(lambda match: str(chosen[match[1]]), self.statement)

    def problem(self) -> Problem:
        return Problem.of(self.id, self.text(), self.answer)

    def program(self, way: str, values: Values | None = None) -> str:
        """The program of a way for `values`, by default those of the problem itself."""
        return programs.substitute(self.sources[way], {**self.values, **(values or {})})

    def refusal(self, values: Values) -> str | None:
        """Why `values` make no problem: out of range, or against a constraint. None if they do."""
        for parameter in self.parameters:
            if not parameter.low <= values[parameter.name] <= parameter.high:
                return f"{parameter.name} is not in {parameter.low}..{parameter.high}"
        for kind, names in self.constraints:
            if not _CONSTRAINTS[kind](*(values[name] for name in names)):
                return f"{', '.join(names)} are not {kind}"
        return None


_CONSTRAINTS: dict[Constraint, Callable[..., bool]] = {
    "distinct": lambda *values: len(set(values)) == len(values),
    "increasing": lambda *values: all(a < b for a, b in pairwise(values)),
    "coprime": lambda *values: gcd(*values) == 1,
}


# --- reading ---


def read_all(root: Path | None = None) -> tuple[Template, ...]:
    """All templates below `root`, by default those that ship with the toolkit, in order of domain
    and id.

    Raises:
        SuiteError: no template there, or one that is not well formed.
    """
    root = root or _shipped()
    found = [read(path.parent) for path in sorted(root.rglob("problem.yaml"))]
    if not found:
        raise SuiteError("no problem templates", expected="folders with problem.yaml", where=root)
    repeated = {
        template.id for template in found if sum(other.id == template.id for other in found) > 1
    }
    if repeated:
        raise SuiteError("templates with the same id", got=", ".join(sorted(repeated)), where=root)
    return tuple(sorted(found, key=lambda template: (template.domain, template.id)))


def _shipped() -> Path:
    from taliesin.models.resolve import data_dir

    return data_dir() / "problems"


def read(folder: Path) -> Template:
    """The template in `folder`.

    Raises:
        SuiteError: a missing file, field or parameter, or values that the template itself refuses.
    """
    path = folder / "problem.yaml"
    fields, sources = read_fields(path, TemplateFile, what="the problem template")
    template = Template(
        id=fields.id,
        domain=fields.domain,
        difficulty=fields.difficulty,
        answer=fields.answer,
        statement=fields.statement.strip(),
        parameters=tuple(
            Parameter(name, p.value, p.low, p.high) for name, p in fields.parameters.items()
        ),
        constraints=tuple(pair for one in fields.constraints for pair in one.items()),
        sources=sources,
    )
    trouble = next(_troubles(template, folder), None)
    if trouble is not None:
        raise SuiteError(trouble, where=path)
    return template


def read_fields(path: Path, kind: type[F], *, what: str) -> tuple[F, dict[str, str]]:
    """What the YAML file says, as a `kind`, and the programs beside it, by way.

    Raises:
        SuiteError: a file is missing, or a field is not as `kind` says; the field is named.
    """
    try:
        fields = strict_yaml.read(path, what=what, error=SuiteError)
        sources = {
            str(way): (path.parent / f"{way}.py").read_text(encoding="utf-8") for way in WAYS
        }
    except (OSError, UnicodeDecodeError) as error:
        raise SuiteError(f"{what} cannot be read", got=error, where=path.parent) from error
    return records.convert(fields, kind, what=what, where=path, error=SuiteError), sources


def _troubles(template: Template, folder: Path) -> Iterator[str]:
    names = set(template.values)
    if template.id != folder.name:
        yield f"the folder of {template.id} has another name"
    if set(_PLACEHOLDER.findall(template.statement)) != names:
        yield "the statement does not show exactly the parameters"
    for kind, of in template.constraints:
        if not set(of) <= names:
            yield f"{kind} is about unknown parameters: {', '.join(sorted(set(of) - names))}"
            return
    refusal = template.refusal(template.values)
    if refusal is not None:
        yield f"the problem's own values are refused: {refusal}"
    for way, source in template.sources.items():
        if programs.parse(source) is None:
            yield f"{way}.py is not a Python program"
        elif programs.parameters(source) != template.values:
            yield f"{way}.py: the parameters of solve are not those of the problem"


def suite(root: Path | None = None) -> Suite:
    """The templates below `root` as problems, in order; the hash is over the statements and
    answers.

    Raises:
        SuiteError: as for `read_all`.
    """
    found = tuple(template.problem() for template in read_all(root))
    digest = hashlib.sha256("\n".join(f"{p.sha256} {p.answer}" for p in found).encode()).hexdigest()
    return Suite(str(root or "data/problems"), "templates", digest, found, ())


# --- checking ---


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """What the three ways say for one set of values. `by_way` is None where a program did not print
    one integer in time.

    `answer` is set only if all ways agree on an integer in 0..999; otherwise `reason` says what is
    in the way.
    """

    values: Mapping[str, int]
    by_way: Mapping[str, int | None]
    answer: int | None
    reason: str

    @property
    def agreed(self) -> bool:
        return self.answer is not None


def cross_check(template: Template, values: Values | None, run: Run) -> CrossCheck:
    """Run all three ways for `values` (None: the problem's own).

    Raises:
        SandboxUnavailable: `run` cannot isolate a program.
    """
    chosen = {**template.values, **(values or {})}
    by_way: dict[str, int | None] = {}
    reason = ""
    for way in WAYS:
        execution = run(template.program(way, chosen))
        by_way[way] = answers.integer(execution.stdout) if execution.status == "ok" else None
        if by_way[way] is None and not reason:
            reason = (
                f"{way}: {execution.status if execution.status != 'ok' else 'no integer printed'}"
            )
    told = set(by_way.values())
    if not reason and len(told) > 1:
        reason = "the ways disagree: " + ", ".join(
            f"{way} {value}" for way, value in by_way.items()
        )
    answer = None if reason else told.pop()
    if answer is not None and answer not in GOLDS:
        answer, reason = None, f"the answer {answer} is not in 0..999"
    return CrossCheck(chosen, by_way, answer, reason)


def draw(template: Template, rng: random.Random) -> dict[str, int] | None:
    """One set of values from the ranges that keeps the constraints, or None if none was found in
    many tries.
    """
    for _ in range(1000):
        values = {
            parameter.name: rng.randint(parameter.low, parameter.high)
            for parameter in template.parameters
        }
        if template.refusal(values) is None:
            return values
    return None


@dataclass(frozen=True, slots=True)
class Variants:
    """`found` are agreed cross-checks with values of their own; `rejected` the draws that were not,
    with their reasons.
    """

    found: tuple[CrossCheck, ...]
    rejected: tuple[CrossCheck, ...]


def variants(template: Template, seed: int, count: int, run: Run) -> Variants:
    """Up to `count` variants, the same for the same template and seed; fewer if the ranges hold no
    more.

    Raises:
        SandboxUnavailable: `run` cannot isolate a program.
    """
    rng = random.Random(f"{template.id}/{seed}")
    seen = [template.values]
    found: list[CrossCheck] = []
    rejected: list[CrossCheck] = []
    for _ in range(count * _PATIENCE):
        if len(found) == count:
            break
        values = draw(template, rng)
        if values is None or values in seen:
            continue
        seen.append(values)
        checked = cross_check(template, values, run)
        (found if checked.agreed else rejected).append(checked)
    return Variants(tuple(found), tuple(rejected))


# --- the record of a check ---


class Drawn(Record):
    """A variant on which all ways agree."""

    values: dict[str, int]
    answer: Gold


class Rejected(Record):
    """A draw on which they do not."""

    values: dict[str, int]
    reason: str


class CheckedTemplate(Record):
    """The whole check of one template, without times, so that it can be made again byte by byte.

    sha256: of everything that an agreed answer depends on (`hashes`).
    """

    agreed: bool
    answer: int | None
    reason: str
    sha256: dict[str, Digest]
    variants: tuple[Drawn, ...]
    rejected: tuple[Rejected, ...]


class Checked(Record, kw_only=True):
    """`checked.json`: the check of every template, with the seed and the number of variants."""

    SCHEMA = "galahad.checked/1"
    schema: Literal["galahad.checked/1"] = "galahad.checked/1"
    seed: int
    variants: Count
    problems: dict[str, CheckedTemplate]

    def text(self) -> str:
        """The text of the file."""
        return json.dumps(records.plain(self), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def read_checked(path: Path) -> Checked:
    """Raises SuiteError: not such a file; the field is named."""
    try:
        return records.read(path, Checked, what="the record of the check", error=SuiteError)
    except OSError as error:
        raise SuiteError("the record of the check cannot be read", got=error, where=path) from error


def hashes(template: Template) -> dict[str, str]:
    """The SHA-256 of everything that an agreed answer depends on."""
    return {
        "text": text_sha256(template.text()),
        "statement": text_sha256(template.statement),
        **{way: text_sha256(source) for way, source in template.sources.items()},
    }


def check(template: Template, run: Run, *, seed: int, count: int) -> CheckedTemplate:
    """The whole check of one template."""
    own = cross_check(template, None, run)
    agreed = own.answer == template.answer
    drawn = variants(template, seed, count, run)
    return CheckedTemplate(
        agreed=agreed and len(drawn.found) == count,
        answer=own.answer,
        reason=own.reason or ("" if agreed else f"problem.yaml says {template.answer}"),
        sha256=hashes(template),
        variants=tuple(
            Drawn(values=dict(v.values), answer=v.answer)
            for v in drawn.found
            if v.answer is not None
        ),
        rejected=tuple(Rejected(values=dict(v.values), reason=v.reason) for v in drawn.rejected),
    )


def stale(checked: Checked, templates: Iterable[Template]) -> list[str]:
    """The ids whose record is missing, not agreed, or older than the template, and those without a
    template.
    """
    known = {template.id: template for template in templates}
    kept = checked.problems
    return sorted(
        [id for id in kept if id not in known]
        + [
            id
            for id, template in known.items()
            if id not in kept or not kept[id].agreed or kept[id].sha256 != hashes(template)
        ]
    )
