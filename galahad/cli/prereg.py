"""`galahad prereg lock|run|check`: say what is expected before a run, and prove afterwards that it
was said.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taliesin.cli.options import Json
from taliesin.errors import EXIT_NO, UsageError
from taliesin.host import console, records

if TYPE_CHECKING:
    from galahad.evidence.prereg import Checked

commands = typer.Typer(
    help="Register a plan before its run, and check the chain afterwards.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Lock = Annotated[
    Path, typer.Argument(metavar="LOCK", help="A file that `lock` wrote.", show_default=False)
]


@commands.command()
def lock(
    plan: Annotated[
        Path,
        typer.Argument(metavar="PLAN", help="A YAML file (docs/prereg.md).", show_default=False),
    ],
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit plan and lock to the git repository here.")
    ] = False,
    tag: Annotated[
        str | None, typer.Option("--tag", help="With --commit: tag the commit.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Hash everything that the plan names, and write it to PLAN.lock.json. Its own SHA-256 is
    printed: publish it.

    Example: galahad prereg lock plan.yaml --commit --tag prereg-1

    Exit codes: 0 locked, 2 not a plan, or it is locked already, 13 not written, 31 a model is
    missing, 44 an input is missing, an output is there already, or git refused.
    """
    if tag and not commit:
        raise UsageError("--tag needs --commit")
    from galahad.evidence import prereg

    path, digest = prereg.lock(plan)
    if as_json:
        console.emit_json("galahad.prereg.lock/1", {"lock": str(path), "sha256": digest})
    else:
        console.out(f"{digest}  {path}")
    if commit:
        prereg.commit(path, tag)


@commands.command()
def run(lock: _Lock, as_json: Json = False) -> None:
    """Run the commands of a locked plan; refuse to start where anything differs; hash the outputs
    at the end.

    Example: galahad prereg run plan.lock.json

    What the commands print goes to stderr. The outputs' hashes and the verdicts are written to
    PLAN.record.json.

    Exit codes: 0 every prediction held, 3 one failed or could not be measured (none is where a
    command failed), 13 not written, 31 a
    model is missing, 44 something is not as it was registered, or the plan was run before.
    """
    from galahad.evidence import prereg

    _finish(prereg.run(lock, console.note), as_json, "galahad.prereg.run/1")


@commands.command()
def check(
    lock: _Lock,
    published: Annotated[
        str | None,
        typer.Option("--sha256", help="The lock's hash as it was published.", show_default=False),
    ] = None,
    published_record: Annotated[
        str | None,
        typer.Option(
            "--record-sha256", help="The record's hash as it was published.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the chain from the lock to the outputs and the verdicts. Needs no model and runs
    nothing.

    Example: galahad prereg check plan.lock.json --sha256 4f2a...

    Exit codes: 0 intact, and every prediction held or nothing was run yet, 3 intact and a
    prediction or a command failed, 44 a link of the chain is broken.
    """
    from galahad.evidence import prereg

    _finish(prereg.check(lock, published, published_record=published_record), as_json, _CHECK)


_CHECK = "galahad.prereg.check/1"


def _finish(found: Checked, as_json: bool, schema: str) -> None:
    from galahad.errors import PreregError
    from galahad.evidence import prereg

    if as_json:
        fields = {
            "lock_sha256": found.lock_sha256,
            "record_sha256": found.record_sha256,
            "intact": found.intact,
            "items": [item._asdict() for item in found.items],
            "predictions": [records.plain(verdict) for verdict in found.verdicts],
        }
        console.emit_json(schema, fields)
    else:
        console.out(f"lock {found.lock_sha256}")
        if found.record_sha256:
            console.out(f"record {found.record_sha256}")
        for item in found.items:
            detail = (
                ""
                if item.state == "same"
                else f" (registered {item.expected[:16]}, here {item.got[:16] or 'none'})"
            )
            console.out(f"{item.state:<13}{_line(item.what)}{detail}")
        for verdict in found.verdicts:
            word = {True: "held", False: "FAILED", None: "not measured"}[verdict.held]
            value = "" if verdict.value is None else f", measured {verdict.value:.6g}"
            console.out(f"{word:<13}{_line(verdict.statement)} ({_line(verdict.expected)}{value})")
        if not found.verdicts:
            console.note("not run yet")
    if not found.intact:
        broken = [item.what for item in found.items if item.state in ("differs", "missing")]
        raise PreregError(
            "the chain is broken", got=", ".join(broken), hint="the lines above say where"
        )
    if prereg.failed(found.verdicts):
        raise typer.Exit(EXIT_NO)


def _line(text: str) -> str:
    """On one line: a statement of several would read as verdicts."""
    return " ".join(text.split())
