"""One arm of a comparison: the same problems asked in one way, a row each, in order, with what it
cost.

The file of an arm holds no text of a problem or of a model. Deliberately does not know: how an arm
is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from galahad.errors import SuiteError
from galahad.measure.energy import Reading, Seconds
from galahad.measure.engine import EngineRecord
from galahad.measure.stats import Proportion
from taliesin.host import clock, durable, records
from taliesin.host.findings import Amount, Finding, Line, Result, duration, share
from taliesin.host.records import Record

Grade = Literal["right", "wrong", "none"]
_CLAIMS = {"recall": "C10", "merged": "C12", "transfer": "C13", "direct": "C16", "card": "C17"}


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
    n_attempts: Amount
    n_reused: Amount
    n_prefilled: Amount
    n_out: Amount
    seconds: Seconds
    detail: dict[str, Any]


class Totals(Record):
    """Sums over the rows, for readers of the file; `causes` counts them."""

    n: Amount
    accuracy: Proportion
    tokens_out: Amount
    tokens_out_per_problem: float | None
    tokens_prefilled: Amount
    tokens_reused: Amount
    seconds: Seconds
    causes: dict[str, Amount]


class Arm(Result, kw_only=True):
    """`kind` names the arm, `settings` everything that was chosen for it; `energy` is a reading
    over the whole arm.
    """

    SCHEMA = "galahad.arm/1"
    schema: Literal["galahad.arm/1"] = "galahad.arm/1"
    kind: str
    engine: EngineRecord
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
            engine=records.convert(dict(engine), EngineRecord, what="the engine's identity"),
            settings=dict(settings),
            rows=done,
            energy=energy,
            created=clock.now(),
            totals=_totals(done),
        )

    @property
    def n_right(self) -> int:
        return sum(row.grade == "right" for row in self.rows)

    @property
    def accuracy(self) -> Proportion:
        return _accuracy(self.rows)

    @property
    def n_out(self) -> int:
        return sum(row.n_out for row in self.rows)

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    def findings(self, file: str) -> Iterator[Finding]:
        is_control = Path(file).name.startswith("control-")
        causes = [row.cause for row in self.rows if row.grade != "right"]
        cells: dict[str, object] = {
            "model": self.engine.model,
            "arm": Path(file).stem,
            "right": share(self.n_right, len(self.rows)),
            "output tokens": self.n_out,
            "time": duration(self.seconds),
            "the others": ", ".join(f"{causes.count(c)} {c}" for c in sorted(set(causes))) or "-",
        }
        claim = "C16" if is_control and self.kind == "recall" else _CLAIMS.get(self.kind, "C11")
        yield Line(claim, cells)
        if claim == "C16":
            yield Line("C17", cells)  # what the card is compared with
        if claim in ("C16", "C17"):
            return
        for name in ("parametric", "baked-in") if self.kind == "transfer" else ():
            part = [
                row for row in self.rows if row.detail.get("parametric") == (name == "parametric")
            ]
            if part:
                right = sum(row.grade == "right" for row in part)
                yield Line(
                    "C14",
                    {
                        "model": cells["model"],
                        "arm": cells["arm"],
                        "program": name,
                        "right": share(right, len(part)),
                    },
                )

    def as_dict(self) -> dict[str, Any]:
        """The fields of the file, but for the schema."""
        return {name: value for name, value in records.plain(self).items() if name != "schema"}

    def write(self, path: Path) -> None:
        """Raises StoreFull, or UsageError if the folder is missing."""
        text = json.dumps(records.plain(self), ensure_ascii=False, indent=1)
        durable.write_output(path, text + "\n")


class RecallArm(Arm, kw_only=True):
    """An arm as `galahad recall --json` prints it."""

    SCHEMA = "galahad.recall/1"
    schema: Literal["galahad.recall/1"] = "galahad.recall/1"  # type: ignore[assignment]


class TransferArm(Arm, kw_only=True):
    """An arm as `galahad transfer --json` prints it."""

    SCHEMA = "galahad.transfer/1"
    schema: Literal["galahad.transfer/1"] = "galahad.transfer/1"  # type: ignore[assignment]


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
