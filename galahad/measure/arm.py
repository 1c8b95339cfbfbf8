"""One arm of a comparison: the same problems asked in one way, a row each, in order, with what it
cost.

The file of an arm holds no text of a problem or of a model. Deliberately does not know: how an arm
is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from galahad.errors import SuiteError
from galahad.measure.energy import Reading, Seconds
from galahad.measure.stats import Proportion
from taliesin.host import clock, durable, records
from taliesin.host.kinds import Count
from taliesin.host.records import Record

Grade = Literal["right", "wrong", "none"]


class Row(Record):
    """One problem. `cause` says how it ended ("answer" where nothing went wrong).

    `block` is the entry that it was routed to, or None. Tokens and seconds are sums over
    `n_attempts`; `n_out` counts generated tokens without the one that stops, `seconds` is wall time
    from the question to the graded answer. `detail` is the arm's own.
    """

    id: str
    sha256: str
    gold: int
    answer: int | None
    grade: Grade
    cause: str
    block: str | None
    n_attempts: Count
    n_reused: Count
    n_prefilled: Count
    n_out: Count
    seconds: Seconds
    detail: dict[str, Any]


class Totals(Record):
    """Sums over the rows, for readers of the file; `causes` counts them."""

    n: Count
    accuracy: Proportion
    tokens_out: Count
    tokens_out_per_problem: float | None
    tokens_prefilled: Count
    tokens_reused: Count
    seconds: Seconds
    causes: dict[str, Count]


class Arm(Record, kw_only=True):
    """`kind` names the arm, `settings` everything that was chosen for it; `energy` is a reading
    over the whole arm.
    """

    SCHEMA = "galahad.arm/1"
    schema: Literal["galahad.arm/1"] = "galahad.arm/1"
    kind: str
    engine: dict[str, Any]
    settings: dict[str, Any]
    rows: tuple[Row, ...]
    energy: Reading
    created: str
    totals: Totals

    @classmethod
    def of(
        cls,
        kind: str,
        engine: Mapping[str, Any],
        settings: Mapping[str, Any],
        rows: Iterable[Row],
        energy: Reading,
    ) -> Arm:
        done = tuple(rows)
        return cls(
            kind=kind,
            engine=dict(engine),
            settings=dict(settings),
            rows=done,
            energy=energy,
            created=clock.now(),
            totals=_totals(done),
        )

    @property
    def accuracy(self) -> Proportion:
        return _accuracy(self.rows)

    @property
    def n_out(self) -> int:
        return sum(row.n_out for row in self.rows)

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """The fields of the file, but for the schema."""
        return {name: value for name, value in records.plain(self).items() if name != "schema"}

    def write(self, path: Path) -> None:
        """Raises StoreFull, or UsageError if the folder is missing."""
        text = json.dumps(records.plain(self), ensure_ascii=False, indent=1)
        durable.write_output(path, text + "\n")


def load(path: Path) -> Arm:
    """The arm in a file that `Arm.write` made.

    Raises:
        SuiteError: not such a file; the field is named.
    """
    try:
        return records.read(
            path, Arm, what="the arm", error=SuiteError, hint="recall or transfer with --out"
        )
    except OSError as error:
        raise SuiteError("the arm cannot be read", got=error, where=path) from error


def _accuracy(rows: Iterable[Row]) -> Proportion:
    grades = [row.grade for row in rows]
    return Proportion.of(grades.count("right"), len(grades))


def _totals(rows: tuple[Row, ...]) -> Totals:
    n = len(rows)
    tokens_out = sum(row.n_out for row in rows)
    return Totals(
        n=n,
        accuracy=_accuracy(rows),
        tokens_out=tokens_out,
        tokens_out_per_problem=tokens_out / n if n else None,
        tokens_prefilled=sum(row.n_prefilled for row in rows),
        tokens_reused=sum(row.n_reused for row in rows),
        seconds=sum(row.seconds for row in rows),
        causes={
            cause: sum(row.cause == cause for row in rows)
            for cause in sorted({row.cause for row in rows})
        },
    )
