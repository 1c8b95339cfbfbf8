"""Raw results: records that say what they mean for a claim.

    class SaveSpeed(Result):
        SCHEMA = "taliesin.bench.save-speed/1"
            ratio: Figure

        def findings(self, file: str) -> Iterator[Finding]:
            yield Said("R2", f"writing takes {self.ratio:.2f}x a plain durable write")

Promises: each type of raw result brings its own reader, and numbers in it can be computed with:
they are finite, and counts are not negative. `galahad.evidence.findings` has the list of all.
Deliberately does not know: what a claim is; its id is a word here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from taliesin.host import records
from taliesin.host.records import Record

# Bounds that leave sums, quotients and formats of figures finite.
Amount = Annotated[int, Meta(ge=0, le=1 << 53, description="a whole number, 0 or more")]
Figure = Annotated[float, Meta(ge=-1e150, le=1e150, description="a finite number")]
Seconds = Annotated[float, Meta(ge=0, le=1e12, description="seconds, 0 or more")]
SomeSeconds = Annotated[float, Meta(gt=0, le=1e12, description="seconds, more than 0")]
Fraction = Annotated[float, Meta(ge=0, le=1, description="a number in 0..1")]


class Said(NamedTuple):
    """A sentence of a claim."""

    claim: str
    text: str


class Line(NamedTuple):
    """A line of a claim's table: cells by column. Lines with the same columns share a table."""

    claim: str
    cells: dict[str, object]


Finding = Said | Line


class Result(Record, forbid_unknown_fields=True):
    """A raw result. A subclass has a SCHEMA; the object that is printed or kept has it as its
    field `schema` besides.
    """

    def findings(self, file: str) -> Iterator[Finding]:
        """What the result says. `file` is the name that it has among the others; everything else is
        its own.
        """
        raise NotImplementedError


class Machine(Record, forbid_unknown_fields=False):
    """Of `machine.describe()`, what a reader wants to see."""

    cpu: str = "CPU"
    cores: Annotated[int, Meta(ge=1, le=1 << 20)] = 2
    load_average: tuple[Figure, ...] | None = None


class Recipe(Record, forbid_unknown_fields=False):
    """Of a recipe, what a reader wants to see."""

    architecture: str
    model_sha256: str
    type_k: str
    type_v: str
    devices: list[str] | None = None

    @property
    def model(self) -> str:
        return f"{self.architecture} {self.model_sha256[:8]}, KV {self.type_k}/{self.type_v}"


def recipe_of(fields: dict[str, Any]) -> Recipe:
    """Raises FormatError: what a reader wants to see is not there."""
    return records.convert(fields, Recipe, what="the recipe of a raw result")


def device(machine: Machine | None, recipe: Recipe | None = None) -> str:
    """Where it was computed, and the load if that was not small."""
    machine = machine or Machine()
    devices = (recipe.devices if recipe else None) or []
    where = "" if devices == ["CPU"] else ", ".join(devices)
    load = (machine.load_average or (0.0,))[0]
    return (where or f"{machine.cpu}, {machine.cores} cores") + (
        f", load {load:.1f}" if load > machine.cores / 2 else ""
    )


def duration(seconds: float) -> str:
    return (
        f"{seconds * 1e3:.1f} ms"
        if seconds < 1
        else f"{seconds:.1f} s"
        if seconds < 100
        else f"{seconds:.0f} s"
    )


def share(right: float, of: float) -> str:
    return f"{right:.0f}/{of:.0f}" + (f" = {right / of:.1%}" if of else "")
