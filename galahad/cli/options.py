"""Options that mean the same in every verb of galahad, and what they stand for.

Nothing here imports llama_cpp, numpy, scipy or sympy at module level.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taliesin.cli.options import default_settings
from taliesin.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from galahad.answerer.answerer import BlockAnswerer
    from galahad.problems.problem import Problem

BankPath = Annotated[
    Path,
    typer.Option("--bank", "-b", metavar="BANK", help="Folder of the bank.", show_default=False),
]
Ids = Annotated[list[str] | None, typer.Option("--id", help="Only this problem; can be repeated.")]
AllowWeak = Annotated[
    bool,
    typer.Option(
        "--allow-weak", help="Run programs even where only resource limits hold them back."
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        help="Least coverage of a route, 0..1; the router's own if not given.",
        show_default=False,
    ),
]


def open_reader(model: str | None, threads: int | None, gpu_layers: int) -> BlockAnswerer:
    """The embedded engine for a bank's blocks."""
    from galahad.answerer.embedded import Embedded
    from taliesin.models import resolve as models

    return Embedded(
        model=model or models.DEFAULT,
        settings=default_settings(threads, None),
        gpu_layers=gpu_layers,
    )


def chosen(problems: Sequence[Problem], ids: Sequence[str] | None, where: object) -> list[Problem]:
    """The problems of these ids, in that order; all without ids.

    Raises:
        UsageError: no such problem.
    """
    known = {problem.id: problem for problem in problems}
    if unknown := [one for one in ids or () if one not in known]:
        raise UsageError(
            f"no problem {', '.join(unknown)}",
            where=where,
            hint="galahad data show FILE lists the ids",
        )
    return [known[one] for one in dict.fromkeys(ids)] if ids else list(problems)
