"""One arm of a comparison: the same problems asked in one way, a row each, in order, with what it
cost.

The file of an arm holds no text of a problem or of a model. Deliberately does not know: how an arm
is run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from galahad.errors import SuiteError
from galahad.measure.stats import Proportion
from taliesin.host import clock, durable

SCHEMA = "galahad.arm/1"


@dataclass(frozen=True)
class Row:
    """One problem. `grade` is right, wrong or none; `cause` says how it ended ("answer" where
    nothing went wrong).

    `block` is the entry that it was routed to, or None. Tokens and seconds are sums over
    `n_attempts`; `n_out` counts generated tokens without the one that stops, `seconds` is wall time
    from the question to the graded answer. `detail` is the arm's own.
    """

    id: str
    sha256: str
    gold: int
    answer: int | None
    grade: str
    cause: str
    block: str | None
    n_attempts: int
    n_reused: int
    n_prefilled: int
    n_out: int
    seconds: float
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class Arm:
    """`kind` names the arm, `settings` everything that was chosen for it; `energy` is a reading
    over the whole arm.
    """

    kind: str
    engine: Mapping[str, Any]
    settings: Mapping[str, Any]
    rows: tuple[Row, ...]
    energy: Mapping[str, Any]
    created: str

    @classmethod
    def of(
        cls,
        kind: str,
        engine: Mapping[str, Any],
        settings: Mapping[str, Any],
        rows: Iterable[Row],
        energy: Mapping[str, Any],
    ) -> Arm:
        return cls(kind, dict(engine), dict(settings), tuple(rows), dict(energy), clock.now())

    @property
    def n_right(self) -> int:
        return sum(row.grade == "right" for row in self.rows)

    @property
    def accuracy(self) -> Proportion:
        return Proportion.of(self.n_right, len(self.rows))

    @property
    def n_out(self) -> int:
        return sum(row.n_out for row in self.rows)

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    def totals(self) -> dict[str, Any]:
        """JSON-ready sums."""
        n = len(self.rows)
        return {
            "n": n,
            "accuracy": self.accuracy._asdict(),
            "tokens_out": self.n_out,
            "tokens_out_per_problem": self.n_out / n if n else None,
            "tokens_prefilled": sum(row.n_prefilled for row in self.rows),
            "tokens_reused": sum(row.n_reused for row in self.rows),
            "seconds": self.seconds,
            "causes": {
                cause: sum(row.cause == cause for row in self.rows)
                for cause in sorted({row.cause for row in self.rows})
            },
        }

    def as_dict(self) -> dict[str, Any]:
        """The fields of the file, but for the schema."""
        return {**asdict(self), "totals": self.totals()}

    def write(self, path: Path) -> None:
        """Raises StoreFull, or UsageError if the folder is missing."""
        durable.write_output(
            path,
            json.dumps({"schema": SCHEMA, **self.as_dict()}, ensure_ascii=False, indent=1) + "\n",
        )


def load(path: Path) -> Arm:
    """The arm in a file that `Arm.write` made.

    Raises:
        SuiteError: not such a file.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SuiteError("the arm cannot be read", got=error, where=path) from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise SuiteError(
            "not an arm", expected=f"a file of {SCHEMA}: recall or transfer with --out", where=path
        )
    try:
        rows = tuple(Row(**row) for row in record["rows"])
        arm = Arm(
            record["kind"],
            record["engine"],
            record["settings"],
            rows,
            record["energy"],
            record["created"],
        )
        _require_types(arm)
    except (KeyError, TypeError) as error:
        raise SuiteError(
            "the arm lacks a field, or has one of another type", got=error, where=path
        ) from error
    return arm


_NUMBER = (int, float)
_ROW_TYPES: Mapping[str, tuple[type, ...]] = {
    "id": (str,),
    "sha256": (str,),
    "gold": (int,),
    "answer": (int, type(None)),
    "grade": (str,),
    "cause": (str,),
    "block": (str, type(None)),
    "n_attempts": (int,),
    "n_reused": (int,),
    "n_prefilled": (int,),
    "n_out": (int,),
    "seconds": _NUMBER,
    "detail": (dict,),
}


def _require_types(arm: Arm) -> None:
    """Raises TypeError with the first field that has another type than `Arm.write` gives it."""
    wrong = [
        name
        for name in ("engine", "settings", "energy")
        if not isinstance(getattr(arm, name), dict)
    ]
    wrong += [name for name in ("kind", "created") if not isinstance(getattr(arm, name), str)]
    for number, row in enumerate(arm.rows, 1):
        wrong += [
            f"row {number}: {name}"
            for name, kinds in _ROW_TYPES.items()
            if type(getattr(row, name)) not in kinds
        ]
        if not wrong and not math.isfinite(row.seconds):
            wrong.append(f"row {number}: seconds")
    if not wrong:
        wrong += [
            f"energy: {name}"
            for name in ("low", "high")
            if type(arm.energy.get(name)) not in (*_NUMBER, type(None))
        ]
    if wrong:
        raise TypeError(wrong[0])
