"""`galahad rebuild`: keep a bank true after an upgrade, from cron."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from galahad.cli.options import AllowWeak, BankPath, open_reader
from taliesin.cli.options import Json, Model
from taliesin.errors import EXIT_NO, EXIT_PARTIAL
from taliesin.host import console

if TYPE_CHECKING:
    from galahad.bank.rebuild import BankRebuildReport, EntryOutcome
    from taliesin.prove.rebuild import Outcome as BlockOutcome

commands = typer.Typer()


@commands.command()
def rebuild(
    bank: BankPath,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            "--max-seconds",
            min=0,
            help="Begin nothing after that long, no program after half of it; "
            "the next run goes on there.",
            show_default=False,
        ),
    ] = None,
    model: Model = None,
    allow_weak: AllowWeak = False,
    as_json: Json = False,
) -> None:
    """Run every program of a bank again, prove every block anew, and compute those again that do
    not hold.

    Example: galahad rebuild --bank banks/aime --max-seconds 3600

    The program verified longest ago comes first, then the block whose proof is oldest. An entry
    whose program no longer gives its answer is set aside in quarantine/, with the reason; moved
    back into entries/ it is in the bank again. A block that this engine would not have computed is
    prefilled again from its token ids, proved from disk, and only then put in the old one's place;
    one that is missing is computed from its entry. A kill at any moment loses nothing. A program is
    not run in a weaker sandbox than verified it, unless --allow-weak. --model names the file of a
    model that is not in the catalogue. Prints one line, and a line on stderr for whatever is wrong.

    Exit codes: 0 everything holds, 3 an entry was set aside or a block failed (its old generation
    is in place), 4 time was up, or something was left because it could not be judged here; 11
    another rebuild is at work, 13 no space, 30-34 engine or model, 41 no bank there, 42 no sandbox.
    """
    from functools import partial

    from galahad.bank.bank import Bank
    from galahad.bank.rebuild import Rebuilder

    with Bank(bank) as store:
        entries = store.ids()
        with console.progress("rebuild", len(entries), "programs") as advance:

            def on_entry(outcome: EntryOutcome) -> None:
                advance(1)
                if outcome.status != "verified":
                    console.warn(f"{outcome.id}: {outcome.status}: {outcome.reason}")

            def on_block(outcome: BlockOutcome) -> None:
                if outcome.status in ("left", "failed"):
                    console.warn(f"{', '.join(outcome.names)}: {outcome.status}: {outcome.reason}")

            worker = Rebuilder(
                store, partial(open_reader, threads=None, gpu_layers=0), model, allow_weak
            )
            report = worker.run(max_seconds, on_entry, on_block)
        set_aside = store.set_aside_ids()
    if as_json:
        console.emit_json(
            "galahad.rebuild/1",
            {"bank": str(bank), "set_aside": list(set_aside), **report.as_dict()},
        )
    else:
        console.out(summary(report, len(set_aside)))
    if not report.sound:
        raise typer.Exit(EXIT_NO)
    if not report.complete:
        raise typer.Exit(EXIT_PARTIAL)


def summary(report: BankRebuildReport, n_set_aside: int) -> str:
    """One line: how many entries and blocks, and what became of them."""
    from taliesin.cli.rebuild import summary as of_blocks

    counts = [
        (report.count("verified"), "verified"),
        (report.count("left"), "left"),
        (report.count("set-aside"), "SET ASIDE"),
        (report.count("failed"), "FAILED"),
        (report.n_waiting, "not reached"),
    ]
    parts = [f"{n} {word}" for n, word in counts if n]
    n = len(report.entries) + report.n_waiting
    earlier = n_set_aside - report.count("set-aside")
    also = f" ({earlier} set aside earlier)" if earlier > 0 else ""
    entries = f"{n} entr{'y' if n == 1 else 'ies'}: {', '.join(parts) or 'nothing to do'}{also}"
    return f"{entries}; {of_blocks(report.blocks).rpartition(';')[0]}; {report.seconds:.1f} s"
