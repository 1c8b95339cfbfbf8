"""`taliesin rebuild`: keep a library usable after an upgrade, from cron."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from taliesin.cli.options import Json, LibraryPath, Model, Threads, Ubatch
from taliesin.errors import EXIT_NO, EXIT_PARTIAL
from taliesin.host import console

if TYPE_CHECKING:
    from taliesin.prove.rebuild import Outcome, RebuildReport

commands = typer.Typer()


@commands.command()
def rebuild(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these blocks; all if none.", show_default=False)
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Begin no block after that long; the next run goes on there.",
            show_default=False,
        ),
    ] = None,
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough", help="Prove new blocks also as `taliesin verify --trials 1` does."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be rebuilt; change nothing.")
    ] = False,
    model: Model = None,
    threads: Threads = None,
    ubatch: Ubatch = None,
    gpu_layers: Annotated[
        int | None,
        typer.Option(
            "--gpu-layers", help="Move blocks to so many layers on the GPU.", show_default=False
        ),
    ] = None,
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Prove every block anew, and compute those again that this engine would not have computed.

    taliesin rebuild --max-seconds 3600

    The block whose proof is oldest comes first. One that does not hold any more (another engine
    version, model, thread count, or damage) is prefilled again from its token ids, proved from
    disk, and only then put in the old one's place; a kill at any moment loses nothing. --threads,
    --ubatch and --gpu-layers move blocks to other settings; --model serves blocks whose own model
    is not in the catalogue. Blocks of llama-server are counted and left alone. Prints one line, and
    a line on stderr for each block that could not be kept up.

    Exit codes: 0 all blocks hold, 3 a block failed and its old generation is in place, 4
    --max-seconds came first, a block was left because what it needs is not here, or --dry-run found
    work; 10 no library, 11 another rebuild is at work, 13 no space, 30-34 engine or model.
    """
    from taliesin.prove.rebuild import Rebuilder
    from taliesin.store.library import Library

    with Library(library, create=False) as store:
        total = (
            len({line.id for line in store.list() if line.name is not None})
            if not names
            else len(names)
        )
        with console.progress("rebuild", total, "blocks") as advance:

            def on_block(outcome: Outcome) -> None:
                advance(1)
                if outcome.status in ("left", "failed"):
                    console.warn(f"{', '.join(outcome.names)}: {outcome.status}: {outcome.reason}")
                elif outcome.status == "stale" and not as_json:
                    console.note(f"{', '.join(outcome.names)}: {outcome.reason}")

            worker = Rebuilder(
                store,
                model=model,
                threads=threads,
                ubatch=ubatch,
                gpu_layers=gpu_layers,
                thorough=thorough,
                dry_run=dry_run,
            )
            report = worker.run(names or None, max_seconds, on_block)
        if as_json:
            console.emit_json(
                "taliesin.rebuild/1",
                {"library": str(store.path), "dry_run": dry_run, **report.as_dict()},
            )
        else:
            console.out(summary(report))
    if not report.sound:
        raise typer.Exit(EXIT_NO)
    if not report.complete:
        raise typer.Exit(EXIT_PARTIAL)


def summary(report: RebuildReport) -> str:
    """One line: how many blocks, and what became of them."""
    words = (
        ("verified", "verified"),
        ("rebuilt", "rebuilt"),
        ("stale", "to be rebuilt"),
        ("left", "left"),
    )
    parts = [f"{report.count(status)} {word}" for status, word in words if report.count(status)]  # type: ignore[arg-type]
    if n_failed := report.count("failed"):
        parts.append(f"{n_failed} FAILED")
    if n_other := report.count("other-engine"):
        parts.append(f"{n_other} of another engine")
    if report.n_waiting:
        parts.append(f"{report.n_waiting} not reached")
    n = len(report.outcomes) + report.n_waiting
    return (
        f"{n} block{'' if n == 1 else 's'}: {', '.join(parts) or 'nothing to do'}; "
        f"{report.seconds:.1f} s"
    )
