"""The `taliesin` command. Each module of this package holds one group of verbs and only parses,
calls and renders.

Nothing here imports llama_cpp, numpy or scipy at module level: `taliesin --help` must stay quick.
"""

from __future__ import annotations

from taliesin.cli import (
    ask,
    bench,
    blocks,
    cache,
    demo,
    doctor,
    library,
    model,
    prove,
    rebuild,
    replay,
    serve,
    server,
)
from taliesin.cli.options import application
from taliesin.host import console

app = application("Byte-exact KV blocks on llama.cpp: save, graft, verify.")

app.add_typer(blocks.commands)
app.add_typer(prove.commands)
app.add_typer(demo.commands)
app.add_typer(library.commands)
app.add_typer(model.commands, name="model")
app.add_typer(serve.commands)
app.add_typer(server.server, name="server")
app.add_typer(server.slotfile, name="slotfile")
app.add_typer(doctor.commands)
app.add_typer(bench.commands)
app.add_typer(ask.commands)
app.add_typer(rebuild.commands)
app.add_typer(replay.commands)
app.add_typer(cache.commands, name="cache")


def main() -> None:
    console.run(app, "taliesin")
