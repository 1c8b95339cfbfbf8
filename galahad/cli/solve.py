"""`galahad solve|status`: run a model over problems, and look at a run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from galahad.cli.options import Ids, chosen
from taliesin.cli.options import GpuLayers, Json
from taliesin.errors import EXIT_PARTIAL, UsageError
from taliesin.host import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from galahad.answerer.answerer import Answerer
    from galahad.problems.problem import Problem
    from galahad.solve.router import Route
    from galahad.solve.run import Progress, Stop
    from galahad.solve.solver import Settings
    from galahad.solve.summary import Summary
    from galahad.solve.writer import RunLog

commands = typer.Typer()

_Run = Annotated[
    Path, typer.Argument(metavar="RUN", help="A folder that solve made.", show_default=False)
]


@commands.command()
def solve(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="PROBLEMS", help="A problem file, or a folder of templates.", show_default=False
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="RUN", help="Folder of the run.", show_default=False)
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="A catalogue name or a GGUF file; with --url the server's name of a model.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="Ask this OpenAI-compatible server. Its key is read from OPENAI_API_KEY."
        ),
    ] = None,
    attempts: Annotated[
        int, typer.Option(help="Attempts at each problem; the majority answers.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="All seeds of the run derive from it.")] = 0,
    temperature: Annotated[
        float | None,
        typer.Option(help="0 is greedy. By default 0 for one attempt, 0.7 for several."),
    ] = None,
    budget: Annotated[
        int | None, typer.Option(help="Output tokens of a whole attempt, at most.")
    ] = None,
    thought_tokens: Annotated[
        int, typer.Option(help="Output tokens of the chain of thought, at most.")
    ] = 1024,
    check_tokens: Annotated[int, typer.Option(help="Output tokens of the check, at most.")] = 512,
    program_tokens: Annotated[
        int, typer.Option(help="Output tokens of the program, at most.")
    ] = 768,
    route: Annotated[str, typer.Option(help="both, thought or program.")] = "both",
    ids: Ids = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many problems.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in RUN.")] = False,
    graft: Annotated[
        bool,
        typer.Option(
            "--graft/--no-graft", help="Save shared prompt prefixes as blocks and graft them."
        ),
    ] = True,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the embedded engine.")] = 2,
    ctx: Annotated[
        int, typer.Option(min=512, help="Context of the embedded engine, in tokens.")
    ] = 8192,
    gpu_layers: GpuLayers = 0,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", help="Seconds that a program may run.")
    ] = 10.0,
    allow_weak: Annotated[
        bool,
        typer.Option("--allow-weak", help="Run programs even where this host cannot isolate them."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Solve problems by a chain of thought that is checked and by a program that is run.

    Example: galahad solve data/problems --model qwen2.5-coder-1.5b --out runs/first

    Both routes are tried, in the order that the router chooses from the problem's words. An attempt
    is confident where the program ran clean, the check held, and both routes agree. With --attempts
    K the majority answers; a tie is no answer. RUN holds a log of attempts (no text of problems or
    models), the transcripts, and the KV blocks of the prompts. Ctrl-C stops after the attempt,
    twice at once; --resume with the same options goes on and repeats nothing that finished.

    Exit codes: 0 every attempt is made, 2 contradicting options, 4 stopped before, 13 disk full, 31
    no such model, 35 server, 40 not a problem file, 42 no sandbox, 43 a damaged run, a running one,
    or one of other inputs.
    """
    from galahad.problems import load as problems
    from galahad.solve import log as runlog
    from galahad.solve import run
    from galahad.solve.writer import RunLog

    settings = _settings(
        route,
        thought_tokens=thought_tokens,
        check_tokens=check_tokens,
        program_tokens=program_tokens,
        budget=budget,
        attempts=attempts,
        temperature=temperature if temperature is not None else (0.0 if attempts == 1 else 0.7),
        seed=seed,
        wall_seconds=timeout,
        allow_weak=allow_weak,
    )
    suite = problems.load(file)
    wanted = chosen(suite.problems, ids, file)[:limit]
    if resume:
        runlog.read(out)  # a damaged run is refused before a model is loaded
    engine = _engine(out, model, url, graft, threads, ctx, gpu_layers)
    try:
        header = run.header(suite, wanted, engine, settings, graft and url is None)
        opened = RunLog.resume(out, header) if resume else RunLog.create(out, header)
        with opened as log:
            if log.recovered_bytes:
                console.warn(
                    f"{out}: the last record was torn; "
                    f"{log.recovered_bytes} bytes of it are cut off"
                )
            if log.done:
                console.note(f"{console.count(len(log.done), 'attempt')} already there")
            with run.stop_on_interrupt() as stop:
                complete = _follow(log, wanted, engine, settings, stop)
    finally:
        engine.close()
    _finish(out, complete, as_json)


def _settings(route: str, **fields: Any) -> Settings:
    from galahad.solve import solver
    from galahad.solve.router import ROUTES

    routes: dict[str, tuple[Route, ...]] = {
        "both": ROUTES,
        "thought": ("thought",),
        "program": ("program",),
    }
    if route not in routes:
        raise UsageError("unknown route", expected=", ".join(routes), got=route)
    return solver.Settings(routes=routes[route], **fields).checked()


def _engine(
    out: Path,
    model: str | None,
    url: str | None,
    graft: bool,
    threads: int,
    ctx: int,
    gpu_layers: int,
) -> Answerer:
    from galahad.answerer.embedded import Embedded
    from galahad.answerer.openai import Server
    from galahad.solve import log as runlog
    from taliesin.engine.llama import Settings
    from taliesin.models import resolve as models

    if url is not None:
        return Server(url, model, os.environ.get("OPENAI_API_KEY"))
    return Embedded(
        model=model or models.DEFAULT,
        settings=Settings(n_threads=threads),
        gpu_layers=gpu_layers,
        n_ctx=ctx,
        prefixes=out / runlog.PREFIXES if graft else None,
    )


def _follow(
    log: RunLog, chosen: Sequence[Problem], engine: Answerer, settings: Settings, stop: Stop
) -> bool:
    """Run with a progress line on a terminal, a line an attempt elsewhere."""
    from galahad.solve import run

    total = len(chosen) * settings.attempts
    n_tokens, started = 0, time.monotonic()

    with console.progress("solving", total, "attempts") as advance:

        def token() -> None:
            nonlocal n_tokens
            n_tokens += 1
            advance(0, f"{n_tokens / (time.monotonic() - started):.1f} tokens/s")

        def finished(progress: Progress) -> None:
            advance(1, f"{n_tokens / (time.monotonic() - started):.1f} tokens/s")
            if not console.stderr_is_terminal():
                console.note(_line(progress))

        advance(len(log.done))
        engine.watch(token)
        return run.solve_all(log, chosen, engine, settings, stop=stop, on_attempt=finished)


def _line(progress: Progress) -> str:
    record = progress.record
    answer = "no answer" if record.answer is None else record.answer
    return (
        f"{progress.done}/{progress.total} {record.problem} attempt {record.attempt + 1}: "
        f"{answer}, "
        f"{record.confidence}, {record.tokens_out} tokens, {record.seconds:.0f} s"
    )


def _finish(out: Path, complete: bool, as_json: bool) -> None:
    from galahad.solve import log as runlog
    from galahad.solve import summary as report

    summary = report.summarise(runlog.read(out))
    if as_json:
        console.emit_json("galahad.solve/1", {"run": str(out), **summary.as_dict()})
    else:
        rows = [
            (
                r.id,
                "-" if r.answer is None else r.answer,
                r.confidence,
                r.grade,
                r.tokens_out,
                f"{r.seconds:.0f}",
            )
            for r in summary.results
        ]
        console.out(
            console.table(["problem", "answer", "confidence", "grade", "tokens", "seconds"], rows)
        )
    console.note(f"right {summary.accuracy}")
    if not complete:
        console.note(f"stopped: {summary.done} of {summary.total} attempts; --resume goes on")
        raise typer.Exit(EXIT_PARTIAL)


@commands.command()
def status(folder: _Run, as_json: Json = False) -> None:
    """Say how far a run is.

    Example: galahad status runs/first

    Exit codes: 0 every attempt is made, 4 not yet, 43 no run there, or a damaged one.
    """
    from galahad.solve import log as runlog
    from galahad.solve import summary as report
    from galahad.solve import writer

    found = runlog.read(folder)
    summary = report.summarise(found)
    running = writer.is_running(folder)
    if as_json:
        fields = {name: value for name, value in summary.as_dict().items() if name != "problems"}
        console.emit_json(
            "galahad.status/1",
            {"run": str(folder), "running": running, "torn_bytes": found.torn_bytes, **fields},
        )
    else:
        for line in _status_lines(summary, running):
            console.out(line)
    if not summary.complete:
        raise typer.Exit(EXIT_PARTIAL)


def _status_lines(summary: Summary, running: bool) -> list[str]:
    state = "complete" if summary.complete else "running" if running else "stopped"
    lines = [
        f"{state}: {summary.done} of {summary.total} attempts, "
        f"{console.count(len(summary.run.sessions), 'session')}",
        f"right {summary.accuracy}",
        f"{summary.tokens_out} tokens out, {summary.tokens_in} in, {summary.seconds:.0f} s"
        + (f", {summary.tokens_per_second:.1f} tokens/s" if summary.tokens_per_second else ""),
    ]
    if summary.run.torn_bytes:
        lines.append(
            f"the last record is torn ({summary.run.torn_bytes} bytes); --resume cuts it off"
        )
    if summary.seconds_left:
        lines.append(f"about {summary.seconds_left / 60:.0f} min left")
    return lines
