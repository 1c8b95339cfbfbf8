"""`taliesin doctor`: what this machine has, what it lacks, and the command that mends it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from taliesin.cli.options import Json, LibraryPath
from taliesin.errors import EXIT_NO, EXIT_OK
from taliesin.host import console

commands = typer.Typer()


@commands.command()
def doctor(
    rehash: Annotated[bool, typer.Option("--hash", help="Hash every model file anew.")] = False,
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Say what is here, what is missing and the command that mends it. Changes nothing.

    taliesin doctor

    Only what `taliesin save` with the default model needs counts for the exit code; the rest is
    told.

    Exit codes: 0 the default job can run, 3 it cannot, 31 the catalogue of models has a fault.
    """
    from taliesin.measure import doctor as physician

    findings = physician.examine(library, rehash=rehash)
    able = physician.able(findings)
    if as_json:
        console.emit_json(
            "taliesin.doctor/1", {"ok": able, "findings": [asdict(finding) for finding in findings]}
        )
    else:
        rows = [
            [f.what, f.state + ("" if f.state == "ok" or not f.needed else " (needed)"), f.found]
            for f in findings
        ]
        console.out(console.table(["what", "state", "found"], rows))
        for finding in findings:
            if finding.mend:
                console.out(f"{finding.what}: {finding.mend}")
        console.out("the default job can run" if able else "the default job cannot run")
    raise typer.Exit(EXIT_OK if able else EXIT_NO)
