"""`taliesin replay|simulate`: recorded traffic against a server, and against budgets."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taliesin.cli.bench import fractions
from taliesin.cli.options import GpuLayers, Json, Model, Threads
from taliesin.errors import EXIT_NO, EXIT_PARTIAL, UsageError
from taliesin.host import console, durable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taliesin.measure.replay import Asker, Job, ReplayReport

commands = typer.Typer()

Trace = Annotated[
    Path, typer.Argument(help="A trace, JSON Lines, plain or .xz.", show_default=False)
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", help="Draw a plot there, an .svg or .png.", show_default=False),
]


@commands.command()
def replay(
    trace: Trace,
    url: Annotated[
        str | None,
        typer.Option("--url", help="A server, with its /v1; none: ours.", show_default=False),
    ] = None,
    passes: Annotated[
        str | None,
        typer.Option(
            "--passes",
            help="Names of passes, in order; cold,warm if not given, and without --url restart "
            "before cold.",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option("--runs", help="The first conversations only.", min=1, show_default=False),
    ] = None,
    turns: Annotated[
        int | None,
        typer.Option("--turns", help="The first requests of each only.", min=1, show_default=False),
    ] = None,
    clients: Annotated[
        int, typer.Option("--clients", help="Conversations that run at once.", min=1, max=64)
    ] = 1,
    tokens: Annotated[int, typer.Option("--tokens", help="Of each answer.", min=1)] = 8,
    completions: Annotated[
        bool,
        typer.Option(
            "--completions", help="Send texts, not messages: for a model without a chat template."
        ),
    ] = False,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", help="Of the server at --url.", show_default=False),
    ] = None,
    server_model: Annotated[
        str, typer.Option("--server-model", help="What requests to --url name as their model.")
    ] = "",
    reference: Annotated[
        str, typer.Option("--reference", help="The pass that the others are compared with.")
    ] = "cold",
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", help="Rows of another run that hold that pass.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="A row for each request, appended; what is there is not asked again.",
            show_default=False,
        ),
    ] = None,
    plot: Plot = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            "--max-seconds", help="Stop after so long; the same call goes on.", show_default=False
        ),
    ] = None,
    model: Model = None,
    ctx: Annotated[
        int | None,
        typer.Option("--ctx", help="Of our server: tokens of a prompt and answer.", min=256),
    ] = None,
    ubatch: Annotated[
        str | None,
        typer.Option(
            "--ubatch", help="Of our server: tokens computed at once, or auto.", show_default=False
        ),
    ] = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = 0,
    as_json: Json = False,
) -> None:
    """Replay recorded conversations against an OpenAI-compatible server: time to the first token,
    prompt tokens reused, and whether each answer is the one of a cold run.

    taliesin replay tau_bench_airline.jsonl.xz --runs 3 --model smollm2-135m

    A line of the trace is an object with `messages`. A request is everything up to an assistant's
    turn. A pass is all requests once. The pass named cold asks for the whole prompt to be computed
    (`cache_prompt: false`); any other name only labels a pass. Without --url a server of ours is
    started with an empty cache, and closed and opened again before the pass restart. No text is
    written down: an answer leaves its digest, its numbers and its times.

    Exit codes: 0 done, and every answer compared is equal, 2 usage, 3 an answer is not the
    reference's, 4 stopped by --max-seconds, 10 no such trace, 20 not a trace, 31 no such model, 35
    the server cannot be asked.
    """
    from taliesin.measure import replay as measure
    from taliesin.measure.traces import talks

    if out is not None:
        durable.require_output(out)
    if url is not None and any(given is not None for given in (model, ctx, ubatch, threads)):
        raise UsageError("options of our own server beside --url", hint="leave them out")
    names = (passes or ("cold,warm" if url else "warm,restart,cold")).split(",")
    wanted = measure.jobs(list(talks(trace))[:runs], turns)
    with ExitStack() as stack:
        rows_file = out or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "rows"
        if url is not None:
            asker = measure.Asker(
                url, key=api_key, model=server_model, completions=completions, tokens=tokens
            )
            stack.callback(asker.close)
            whole = all(
                _pass(asker, wanted, name, rows_file, clients, max_seconds) for name in names
            )
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            whole = True
            for server in _runs_of(names):
                with _served(model, ctx, folder, ubatch, threads, gpu_layers) as address:
                    asker = measure.Asker(address, completions=completions, tokens=tokens)
                    for name in server:
                        whole = whole and _pass(
                            asker, wanted, name, rows_file, clients, max_seconds
                        )
                    asker.close()
        rows, parts = measure.read(rows_file)
    known = measure.read(against)[0] if against is not None else None
    if known is not None:
        known = [row for row in known if row.label == reference]
    found = measure.report(rows, parts, reference=known, reference_name=reference)
    if plot is not None:
        measure.plot(rows, plot)
    _show(found, as_json)
    if any(p.equal_tokens < p.compared or p.equal_scores < p.compared for p in found.passes):
        raise typer.Exit(EXIT_NO)
    if not whole:
        raise typer.Exit(EXIT_PARTIAL)


def _show(found: ReplayReport, as_json: bool) -> None:
    from taliesin.host.records import plain
    from taliesin.measure import replay as measure

    if as_json:
        console.emit_json(found.SCHEMA, plain(found))
    else:
        console.out(console.table(measure.HEADERS, measure.table_rows(found)))


def _pass(
    asker: Asker,
    wanted: list[list[Job]],
    name: str,
    file: Path,
    clients: int,
    max_seconds: float | None,
) -> bool:
    from taliesin.measure import replay as measure

    with console.progress(name, sum(map(len, wanted)), "requests") as advance:
        return measure.replay(
            asker,
            wanted,
            name,
            file,
            clients=clients,
            max_seconds=max_seconds,
            on_row=lambda _row: advance(1),
        )


def _runs_of(names: list[str]) -> list[list[str]]:
    """The passes of each start of our server: `restart` begins another one."""
    starts: list[list[str]] = [[]]
    for name in names:
        if name == "restart" and starts[-1]:
            starts.append([])
        starts[-1].append(name)
    return starts


@contextmanager
def _served(
    model: str | None,
    ctx: int | None,
    folder: Path,
    ubatch: str | None,
    threads: int | None,
    gpu_layers: int,
) -> Iterator[str]:
    """The address of a server of ours whose cache lies in `folder`."""
    import threading

    from taliesin.cli.serve import CacheBudget, embedded
    from taliesin.serve.listen import FrontServer

    with ExitStack() as stack:
        budget = CacheBudget(2 << 30, 10 << 30, None, folder / "pieces")
        service, *_ = embedded(
            stack, model, ctx, budget, threads, ubatch, gpu_layers, folder / "library"
        )
        front = FrontServer(service)
        stack.callback(front.server_close)
        threading.Thread(target=front.serve_forever, daemon=True).start()
        stack.callback(front.shutdown)
        yield front.url


@commands.command()
def simulate(
    trace: Trace,
    shares: Annotated[
        str, typer.Option("--shares", help="Budgets, as shares of an unlimited cache's bytes.")
    ] = "0.02,0.05,0.1,0.25,0.5",
    at_once: Annotated[
        int, typer.Option("--at-once", help="Recorded sessions that run beside each other.", min=1)
    ] = 8,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Play a trace of hashes against budgets of a prefix cache: how many prompt tokens would be
    found.

    taliesin simulate mooncake_conversation.jsonl.xz --shares 0.1,0.5

    No model and no bytes are needed: equal hashes are equal pieces. `lru` is what `taliesin serve`
    does on its disk; `uses` prefers what was used often; `optimum` knows the future.

    Exit codes: 0 done, 2 usage, 10 no such trace, 20 not a trace.
    """
    from taliesin.measure import simulate as measure
    from taliesin.measure.traces import hashed

    wanted = fractions(shares, "--shares")
    lines = measure.simulate(hashed(trace, at_once), wanted)
    if plot is not None:
        measure.plot(lines, plot)
    if as_json:
        fields = [line._asdict() | {"rate": line.rate} for line in lines]
        console.emit_json("taliesin.simulate/1", {"lines": fields})
        return
    best = lines[0].rate
    rows = [
        (
            line.policy,
            "-" if line.share is None else f"{line.share:g}",
            f"{line.rate:.2%}",
            f"{(best - line.rate) * 100:.2f}",
            str(line.written),
            str(line.evicted),
        )
        for line in lines
    ]
    headers = ("policy", "budget", "tokens found", "points below", "pieces written", "evicted")
    console.out(console.table(headers, rows))
