"""What was measured, and whether the predictions held.

Deliberately does not know: how the outputs came about.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from galahad.evidence.prereg.records import DONE, Operator, Plan, Verdict
from galahad.solve import log as runlog
from taliesin.errors import ToolkitError

_OPERATORS: dict[Operator, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
}


def verdicts(plan: Plan, root: Path, codes: Sequence[int]) -> list[Verdict]:
    """Where a command failed or was not run, nothing is measured: an output may be half of what the
    plan says.
    """
    found = measure(plan, root)
    if len(codes) == len(plan.commands) and all(code in DONE for code in codes):
        return found
    return [replace(verdict, value=None, held=None) for verdict in found]


def measure(plan: Plan, root: Path) -> list[Verdict]:
    """What each prediction came to, whatever the commands did."""
    found = []
    for prediction in plan.predictions:
        value = measured(root / prediction.source, prediction.field)
        is_held = None
        if value is not None:
            is_held = _OPERATORS[prediction.operator](value, prediction.value)
        found.append(
            Verdict(
                statement=prediction.statement,
                expected=prediction.expected,
                value=value,
                held=is_held,
            )
        )
    return found


def measured(source: Path, field: str) -> float | None:
    """The number at the dotted path `field` in a JSON file, or in the report of a run's folder;
    None where there is none.

    A share of two numbers is `field / field`, for example `accuracy.k / accuracy.n`. NaN and
    infinity are no numbers.
    """
    try:
        if source.is_dir():
            from galahad.solve import summary as report

            document: Any = report.summarise(runlog.read(source)).as_dict()
        else:
            document = json.loads(source.read_bytes())
    except (OSError, ValueError, RecursionError, ToolkitError):
        return None
    values = [_at(document, part.strip()) for part in field.split(" / ")]
    if any(value is None for value in values) or len(values) > 2:
        return None
    first, *rest = (float(value) for value in values if value is not None)
    share = first if not rest else first / rest[0] if rest[0] else math.nan
    return share if math.isfinite(share) else None


def _at(document: Any, dotted: str) -> float | None:
    for key in dotted.split("."):
        if isinstance(document, list) and key in map(str, range(len(document))):
            document = document[int(key)]
        elif isinstance(document, dict) and key in document:
            document = document[key]
        else:
            return None
    try:
        number = float(document) if isinstance(document, (int, float)) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def failed(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The predictions that did not hold, or could not be measured."""
    return [verdict for verdict in verdicts if not verdict.held]
