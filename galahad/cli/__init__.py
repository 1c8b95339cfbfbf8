"""The `galahad` command. Each module of this package holds one group of verbs and only parses, calls and renders.

Nothing here imports llama_cpp, numpy, scipy or sympy at module level: `galahad --help` must stay quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

from galahad.cli import bank, data, livebench, prereg, recall, report, solve, verify
from taliesin import __version__, console

app = typer.Typer(
    help="Solve, verify by running code, bank as KV blocks, recall and transfer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        console.out(__version__)
        raise typer.Exit


@app.callback()
def _common(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes and no progress on stderr.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    console.set_quiet(quiet)


app.add_typer(solve.commands)
app.add_typer(report.commands)
app.add_typer(livebench.commands)
app.add_typer(verify.commands)
app.add_typer(recall.commands)
app.add_typer(bank.commands, name="bank")
app.add_typer(data.commands, name="data")
app.add_typer(prereg.commands, name="prereg")


def main() -> None:
    console.run(app, "galahad")
