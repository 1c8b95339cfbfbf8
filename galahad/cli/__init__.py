"""The `galahad` command. Each module of this package holds one group of verbs and only parses,
calls and renders.

Nothing here imports llama_cpp, numpy, scipy or sympy at module level: `galahad --help` must stay
quick.
"""

from __future__ import annotations

from galahad.cli import bank, data, livebench, prereg, rebuild, recall, report, solve, verify
from taliesin.cli.options import application
from taliesin.host import console

app = application("Solve, verify by running code, bank as KV blocks, recall and transfer.")

app.add_typer(solve.commands)
app.add_typer(report.commands)
app.add_typer(livebench.commands)
app.add_typer(verify.commands)
app.add_typer(recall.commands)
app.add_typer(rebuild.commands)
app.add_typer(bank.commands, name="bank")
app.add_typer(data.commands, name="data")
app.add_typer(prereg.commands, name="prereg")


def main() -> None:
    console.run(app, "galahad")
