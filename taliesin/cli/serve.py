"""`taliesin serve`: an OpenAI-compatible API whose answers are those of a cold server."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from taliesin.cli.options import (
    EngineChoice,
    EngineName,
    GpuLayers,
    Json,
    LibraryPath,
    Model,
    Reach,
    Threads,
    default_settings,
    grouped,
    parse_bytes,
)
from taliesin.cli.server import open_engine, options_of
from taliesin.errors import UsageError
from taliesin.host import console

if TYPE_CHECKING:
    from collections.abc import Callable

    from taliesin.serve.plan import Service

commands = typer.Typer()

_LOOK_SECONDS = 1.0  # between two looks at whether a llama-server still lives
_UBATCH = 128  # more of a prompt is reused than in pieces of 512 (benchmarks/prefix_cache.py)
_DEFAULT_SLOTS = 4
_MOST_CTX = 8192


class CacheBudget(NamedTuple):
    """What the prefix cache may take; `day_bytes`: written to disk in 24 hours."""

    memory_bytes: int
    disk_bytes: int
    day_bytes: int | None
    folder: Path | None


@commands.command()
@grouped
def serve(
    model_argument: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="The same as --model.", show_default=False),
    ] = None,
    model: Model = None,
    host: Annotated[
        str, typer.Option("--host", help="Beyond this machine only with a key.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", help="0 takes a free one.", min=0, max=65535)
    ] = 8089,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="TALIESIN_API_KEY",
            help="What clients must send.",
            show_default=False,
        ),
    ] = None,
    max_body: Annotated[
        int, typer.Option("--max-body", help="Largest request, in bytes.", min=1024)
    ] = 16 << 20,
    engine: EngineChoice = EngineName.EMBEDDED,
    ctx: Annotated[
        int | None,
        typer.Option(
            "--ctx",
            help="Tokens of a prompt and its answer; the model's own length, at most 8192, if not "
            "given. With --engine server: of one slot.",
            min=256,
            show_default=False,
        ),
    ] = None,
    cache: Annotated[
        str,
        typer.Option("--cache", help="Memory for what earlier prompts began with: 4GB. 0: none."),
    ] = "2GiB",
    cache_disk: Annotated[
        str,
        typer.Option(
            "--cache-disk", help="Disk for the same, which the next start finds again. 0: none."
        ),
    ] = "10GB",
    cache_writes: Annotated[
        str | None,
        typer.Option(
            "--cache-writes",
            help="Most that this start writes there in 24 hours: 50GB.",
            show_default=False,
        ),
    ] = None,
    cache_folder: Annotated[
        Path | None,
        typer.Option(
            "--cache-folder",
            help="Where on the disk; `prefixes` in the cache folder if not given.",
            show_default=False,
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            help="With --engine server: slots, 4 if not given.",
            min=1,
            show_default=False,
        ),
    ] = None,
    threads: Threads = None,
    ubatch: Annotated[
        str | None,
        typer.Option(
            "--ubatch",
            help="Tokens computed at once, part of the recipe: 128 if not given. auto: the "
            "smallest that is nearly the quickest here, measured at the first start.",
            show_default=False,
        ),
    ] = None,
    gpu_layers: GpuLayers = 0,
    reach: Reach = Reach(),
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Serve an OpenAI-compatible API that remembers what prompts begin with: chat completions,
    completions, models, streaming.

    taliesin serve smollm2-135m

    A prompt that begins like an earlier one is computed only from there on, and its answer is the
    one of a cold run, bit for bit. Blocks of the library help too; the request's `taliesin_block`
    names one. With --engine server a llama-server computes: it takes more kinds of requests, and
    only blocks of the library are reused. Response headers X-Taliesin-Block, -Tokens-Skipped and
    -Proof say what was done. The address is printed on stdout; Ctrl-C ends it, and the
    llama-server that it started.

    Exit codes: 2 usage, 22 the server's options are not exact, 30-35 engine, model or server, 35
    also when the llama-server ends while it serves; 130 ended with Ctrl-C, 143 with a signal.
    """
    from taliesin.serve.listen import FrontServer

    if model is not None and model_argument is not None:
        raise UsageError("the model is named twice", got=f"{model_argument} and {model}")
    model = model or model_argument
    budget = CacheBudget(
        parse_bytes(cache),
        parse_bytes(cache_disk),
        None if cache_writes is None else parse_bytes(cache_writes),
        cache_folder,
    )
    if engine is EngineName.EMBEDDED and (slots is not None or any(reach)):
        raise UsageError(
            "options of a llama-server, which the embedded engine does not have",
            hint="--engine server",
        )
    with ExitStack() as stack:
        if engine is EngineName.EMBEDDED:
            service, name, inexact, ended = embedded(
                stack, model, ctx, budget, threads, ubatch, gpu_layers, library
            )
        else:
            service, name, inexact, ended = _llama_server(
                stack, model, ctx, slots, threads, _size(ubatch), gpu_layers, reach, library
            )
        front = FrontServer(service, host, port, key=api_key, max_body_bytes=max_body)
        stack.callback(front.server_close)
        if as_json:
            fields = {
                "url": front.url,
                "model": name,
                "engine": engine.value,
                "inexact": inexact,
            }
            console.emit_json("taliesin.serve/1", fields)
        else:
            console.out(front.url)
        sys.stdout.flush()  # a reader of the address waits for it
        threading.Thread(target=front.serve_forever, daemon=True).start()
        stack.callback(front.shutdown)
        while not ended():
            threading.Event().wait(_LOOK_SECONDS)


def _size(ubatch: str | None) -> int | None:
    """Tokens of `--ubatch`, which is a number here.

    Raises:
        UsageError: it is none.
    """
    if ubatch is None:
        return None
    if not (ubatch.isascii() and ubatch.isdigit() and 0 < int(ubatch) < 1 << 20):
        raise UsageError("--ubatch is no size", expected="a number, such as 128", got=ubatch)
    return int(ubatch)


def embedded(
    stack: ExitStack,
    model: str | None,
    ctx: int | None,
    budget: CacheBudget,
    threads: int | None,
    ubatch: str | None,
    gpu_layers: int,
    library: Path | None,
) -> tuple[Service, str, list[str], Callable[[], bool]]:
    """The engine in this process, as a service; the model's file name; what is inexact: nothing;
    and whether it has ended: never.
    """
    from taliesin.engine.embedded import Engine
    from taliesin.engine.prefill import PrefixCache
    from taliesin.host.places import cache_dir
    from taliesin.measure.ubatch import choose
    from taliesin.models import resolve as models
    from taliesin.serve.embedded import Embedded
    from taliesin.store.pieces import PieceStore

    auto = ubatch == "auto"
    settings = default_settings(threads, (not auto and _size(ubatch)) or _UBATCH)
    engine = stack.enter_context(
        Engine(model or models.DEFAULT, settings=settings, gpu_layers=gpu_layers)
    )
    if auto:
        choice = choose(engine, cache_dir() / "ubatch")
        told = ", ".join(f"{size}: {speed:.0f}" for size, speed in choice.speeds.items())
        console.note(f"--ubatch {choice.n_ubatch} (tokens a second in pieces of {told})")
        engine.settings = replace(settings, n_ubatch=choice.n_ubatch)
    n_ctx = ctx or min(engine.model.n_ctx_train or _MOST_CTX, _MOST_CTX)
    cache = stack.enter_context(PrefixCache(engine, n_ctx, memory_bytes=budget.memory_bytes))
    if budget.disk_bytes:
        cache.store = stack.enter_context(
            PieceStore(
                budget.folder or cache_dir() / "prefixes",
                cache.recipe_id,
                budget_bytes=budget.disk_bytes,
                day_bytes=budget.day_bytes,
            )
        )
    path = engine.model.path
    return Embedded(cache, library, path.stem), path.name, [], lambda: False


def _llama_server(
    stack: ExitStack,
    model: str | None,
    ctx: int | None,
    slots: int | None,
    threads: int | None,
    ubatch: int | None,
    gpu_layers: int,
    reach: Reach,
    library: Path | None,
) -> tuple[Service, str, list[str], Callable[[], bool]]:
    """As `_embedded`, of a llama-server; when it has ended, the error that says so is raised."""
    from taliesin.errors import ServerError
    from taliesin.serve.llama_server import LlamaServer

    options = options_of(
        default_settings(threads, ubatch), slots or _DEFAULT_SLOTS, ctx or 4096, gpu_layers
    )
    engine = open_engine(stack, model, options, reach)
    if engine.inexact:
        console.warn("no graft: " + "; ".join(engine.inexact))

    def ended() -> bool:
        # Nobody knows the process of a server that others started.
        if engine.server.pid is not None and not engine.server.alive:
            raise ServerError(
                "the llama-server behind the front has ended", where=engine.server.url
            )
        return False

    path = engine.model.path
    return LlamaServer(engine, library, path.stem), path.name, list(engine.inexact), ended
