"""The `taliesin` command. Each module of this package holds one group of verbs and only parses, calls and renders.

Nothing here imports llama_cpp, numpy or scipy at module level: `taliesin --help` must stay quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

from taliesin import __version__, console
from taliesin.cli import ask, bench, blocks, demo, doctor, library, model, prove, rebuild, server

app = typer.Typer(
    help="Byte-exact KV blocks on llama.cpp: save, graft, verify.",
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


app.add_typer(blocks.commands)
app.add_typer(prove.commands)
app.add_typer(demo.commands)
app.add_typer(library.commands)
app.add_typer(model.commands, name="model")
app.add_typer(server.commands)
app.add_typer(server.server, name="server")
app.add_typer(server.slotfile, name="slotfile")
app.add_typer(doctor.commands)
app.add_typer(bench.commands)
app.add_typer(ask.commands)
app.add_typer(rebuild.commands)


def main() -> None:
    console.run(app, "taliesin")
