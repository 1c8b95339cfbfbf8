"""`taliesin verify|shift`: proof that a graft changes nothing, and what happens to one that is
moved.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taliesin.cli import server as servers
from taliesin.cli.options import (
    EngineChoice,
    EngineName,
    GpuLayers,
    Json,
    LibraryPath,
    Model,
    Reach,
    Threads,
    Ubatch,
    default_settings,
    grouped,
    model_for,
    read_text,
)
from taliesin.errors import EXIT_NO, UsageError
from taliesin.host import console

if TYPE_CHECKING:
    from taliesin.prove.report import VerifyReport
    from taliesin.prove.shift import Shifted
    from taliesin.prove.verify import Run
    from taliesin.store.library import Library

commands = typer.Typer()

Text = Annotated[
    str | None,
    typer.Option(
        "--text",
        help="A text file instead: it is saved in a library of its own first.",
        show_default=False,
    ),
]
OptionalName = Annotated[str | None, typer.Argument(help="A name or id.", show_default=False)]


def _library(stack: ExitStack, library: Path | None, text: str | None) -> Library:
    from taliesin.store.library import Library

    if text is None:
        return stack.enter_context(Library(library, create=False))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taliesin-text-")))
    return stack.enter_context(Library(folder / "library"))


def _names(
    store: Library,
    name: str | None,
    everything: bool | None,
    text: str | None,
    model: str | None,
    threads: int | None,
    ubatch: int | None,
    gpu_layers: int,
) -> list[str]:
    """The blocks meant: one name, all (None where the command has no --all), or those of a text
    that is saved first.
    """
    if (name is not None) + bool(everything) + (text is not None) != 1:
        raise UsageError(
            "name one of: a block, " + ("" if everything is None else "--all, ") + "--text"
        )
    if text is not None:
        from taliesin.engine.embedded import Engine
        from taliesin.engine.save import save
        from taliesin.models import resolve as models

        content = read_text(text)
        settings = default_settings(threads, ubatch)
        with Engine(model or models.DEFAULT, settings=settings, gpu_layers=gpu_layers) as engine:
            return [saved.info.id for saved in save(engine, store, content, "text")]
    if everything:
        return [info.id for info in store.list() if info.problem is None]
    assert name is not None
    return [name]


def _whole_numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"{option} takes whole numbers, comma-separated", expected="1,16,256", got=text
        ) from error


@commands.command()
@grouped
def verify(
    name: OptionalName = None,
    everything: Annotated[bool, typer.Option("--all", help="Every block of the library.")] = False,
    text: Text = None,
    trials: Annotated[
        int, typer.Option("--trials", help="Times that each query is repeated.", min=1)
    ] = 5,
    samples: Annotated[
        int, typer.Option("--samples", help="Pairs of logits vectors in the statistics.", min=1)
    ] = 50,
    steps: Annotated[
        int, typer.Option("--steps", help="Greedy tokens after each query.", min=0)
    ] = 16,
    queries: Annotated[
        str, typer.Option("--queries", help="Query lengths in tokens, comma-separated.")
    ] = "1,7,64,600",
    sabotage: Annotated[
        str | None,
        typer.Option(
            help="Break the graft on purpose: plain-swa, shift, bitflip or threads.",
            show_default=False,
        ),
    ] = None,
    model: Model = None,
    threads: Threads = None,
    ubatch: Ubatch = None,
    gpu_layers: GpuLayers = 0,
    engine_name: EngineChoice = EngineName.EMBEDDED,
    reach: Reach = Reach(),
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Compare a block's graft with fresh recomputes, bit for bit.

    taliesin verify notes --trials 2

    The reference is computed in one process, the graft in another after a decoy prompt; queries of
    1, 7, 64 and 600 tokens, every logits vector hashed. --sabotage runs a graft that is broken on
    purpose: it must come out as not exact. With --engine server the references are the server's own
    live and one-shot runs; HTTP gives no logits, so tokens and log-probabilities are compared. With
    --json one line a block.

    Exit codes: 0 every block is exact, 3 one is not, 2 usage, 10 no such block, 12 damaged, 22
    other recipe, 30-34 engine or model.
    """
    from taliesin.models import resolve as models
    from taliesin.prove.verify import Sabotage
    from taliesin.prove.verify import verify as run_verify

    if sabotage is not None and sabotage not in list(Sabotage):
        raise UsageError("unknown sabotage", expected=", ".join(Sabotage), got=sabotage)
    lengths = _whole_numbers("--queries", queries)
    exact = True
    with ExitStack() as stack:
        store = _library(stack, library, text)
        names = _names(store, name, everything, text, model, threads, ubatch, gpu_layers)
        if engine_name is EngineName.SERVER:
            if sabotage:
                raise UsageError("--sabotage breaks grafts of the embedded engine only")
            if not servers.verify(
                store,
                names,
                model=model,
                steps=steps,
                inexact=reach.url is not None,
                reach=reach,
                as_json=as_json,
            ):
                raise typer.Exit(EXIT_NO)
            return
        n_runs = len(names) * len(lengths) * (2 * trials + 1)
        advance = stack.enter_context(console.progress("verify", n_runs, "runs"))

        def on_run(_role: str, _run: Run) -> None:
            advance(1)

        for each in names:
            with store.open(each) as block:
                path = models.resolve(model_for(block.header.recipe, model))
                report = run_verify(
                    block,
                    path,
                    gpu_layers=gpu_layers,
                    trials=trials,
                    samples=samples,
                    n_steps=steps,
                    lengths=lengths,
                    sabotage=Sabotage(sabotage) if sabotage else None,
                    on_run=on_run,
                )
            exact = exact and report.exact
            if as_json:
                console.emit_json(report.SCHEMA, report.named(each).as_dict())
            else:
                _print_report(each, report)
    if not exact:
        raise typer.Exit(EXIT_NO)


def _print_report(name: str, report: VerifyReport) -> None:
    broken = f", broken on purpose ({report.sabotage})" if report.sabotage else ""
    console.out(f"{name}: {report.n_tokens} tokens, {report.trials} trials{broken}")
    console.out(
        console.table(
            [
                "query",
                "vectors",
                "equal to block, then query",
                "equal to one-shot",
                "first difference",
            ],
            [
                (
                    row.query_tokens,
                    row.n_vectors,
                    row.equal_block_then_query,
                    row.equal_one_shot,
                    "-" if row.first_difference is None else f"step {row.first_difference}",
                )
                for row in report.rows
            ],
        )
    )
    figures = report.statistics
    assert figures is not None  # the embedded engine gives logits

    def figure(value: float | None) -> str:
        return "undefined" if value is None else f"{value:.4g}"

    console.out(
        f"{figures.n} samples: KL median {figures.kl_median:.3g}, p99 {figures.kl_p99:.3g}, max "
        f"{figures.kl_max:.3g}; argmax agreement {figures.argmax_agreement:.0%}; Mann-Whitney U p "
        f"{figure(figures.mann_whitney_p)}, Cliff's delta {figure(figures.cliffs_delta)}"
    )
    console.out(
        f"first logits: fresh {report.fresh_seconds * 1e3:.0f} ms, graft "
        f"{report.graft_seconds * 1e3:.0f} ms "
        f"({report.fresh_seconds / report.graft_seconds:.1f}x)"
    )
    held = [
        label
        for label, holds in (
            ("block, then query", report.block_then_query_holds),
            ("the one-shot prompt", report.one_shot_holds),
        )
        if holds
    ]
    verdict = "EXACT" if report.exact else "NOT EXACT"
    console.out(f"{verdict}: equals {' and '.join(held) or 'nothing'}; promised: {report.promise}")


@commands.command()
def shift(
    name: OptionalName = None,
    text: Text = None,
    by: Annotated[
        str, typer.Option("--by", help="Distances in positions, comma-separated.")
    ] = "1,16,256",
    n_queries: Annotated[int, typer.Option("--queries", help="Queries of 7 tokens.", min=1)] = 10,
    model: Model = None,
    gpu_layers: GpuLayers = 0,
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Move a graft by k positions, beside its control: two fresh prefills at both positions.

    taliesin shift notes --by 1,256

    Shows why a block is exact only at its own token offset, and how much of the residual is the
    model's own rounding.

    Exit codes: 0 measured, 2 usage, 10 no such block, 12 damaged, 22 other recipe, 30-34 engine or
    model.
    """
    from taliesin.engine.embedded import Engine
    from taliesin.prove.shift import shift as run_shift

    distances = _whole_numbers("--by", by)
    results: list[Shifted] = []
    with ExitStack() as stack:
        store = _library(stack, library, text)
        names = _names(store, name, None, text, model, None, None, gpu_layers)
        block = stack.enter_context(store.open(names[0]))
        engine = stack.enter_context(
            Engine(model_for(block.header.recipe, model), gpu_layers=gpu_layers)
        )
        advance = stack.enter_context(
            console.progress("shift", n_queries * len(distances), "queries")
        )
        results = run_shift(engine, block, distances, n_queries, on_query=lambda: advance(1))
    if as_json:
        header = block.header
        fields = {
            "block_id": block.block_id,
            "title": header.title,
            "n_tokens": len(header.tokens),
            "recipe": dict(header.recipe),
            "shifts": [r.as_dict() | {"statement": r.statement} for r in results],
        }
        console.emit_json("taliesin.shift/1", fields)
        return
    console.out(
        console.table(
            [
                "moved by",
                "vectors",
                "bit-equal",
                "KL median",
                "KL max",
                "argmax",
                "control median",
                "control max",
            ],
            [
                (
                    r.by,
                    r.moved.n,
                    r.bit_equal,
                    f"{r.moved.kl_median:.2e}",
                    f"{r.moved.kl_max:.2e}",
                    f"{r.moved.argmax_agreement:.0%}",
                    f"{r.control.kl_median:.2e}",
                    f"{r.control.kl_max:.2e}",
                )
                for r in results
            ],
        )
    )
    for r in results:
        console.out(r.statement)
