"""Options that mean the same in every verb, and the question before something is destroyed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from taliesin.errors import UsageError

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
LibraryPath = Annotated[
    Path | None,
    typer.Option(
        "--library",
        envvar="TALIESIN_LIBRARY",
        help="Folder of the blocks; the user's data folder if not given.",
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Needed where stdin is not a terminal.")]


def confirm(question: str, yes: bool) -> bool:
    """Whether to go on: `--yes`, or the answer on the terminal.

    Raises:
        UsageError: there is no terminal to ask on.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("not done without a confirmation", hint="--yes")
    return typer.confirm(question, err=True)
