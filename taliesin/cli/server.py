"""`taliesin server start|stop|status` and `taliesin slotfile show|layout|export`: llama-server and
what it saves.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taliesin.cli.options import (
    BlockName,
    GpuLayers,
    Json,
    LibraryPath,
    Model,
    Reach,
    ServerBin,
    Threads,
    Ubatch,
    default_settings,
    model_for,
)
from taliesin.errors import EXIT_NO, UsageError
from taliesin.host import console, records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taliesin.engine.llama import Sampling, Settings
    from taliesin.prove.report import VerifyRow
    from taliesin.server.backend import ServerBackend
    from taliesin.server.options import Options
    from taliesin.server.process import Server
    from taliesin.store.blockfile import BlockFile
    from taliesin.store.library import Library, Policy

server = typer.Typer(
    no_args_is_help=True, help="A llama-server with the options that exactness needs."
)
slotfile = typer.Typer(
    no_args_is_help=True, help="Files that llama-server leaves in --slot-save-path."
)

Slots = Annotated[int, typer.Option("--slots", help="Slots, each with a cache of its own.", min=1)]
Ctx = Annotated[int, typer.Option("--ctx", help="Tokens of one slot.", min=256)]


def options_of(settings: Settings, slots: int = 1, ctx: int = 4096, gpu_layers: int = 0) -> Options:
    """Exact options that compute as `settings` say."""
    from taliesin.server.options import Options

    return Options(
        n_slots=slots,
        n_ctx=ctx,
        n_ubatch=settings.n_ubatch,
        n_threads=settings.n_threads,
        flash_attn=settings.flash_attn,
        type_k=settings.type_k,
        type_v=settings.type_v,
        gpu_layers=gpu_layers,
    )


def open_engine(
    stack: ExitStack, model: str | None, options: Options, reach: Reach
) -> ServerBackend:
    """The server to use, as an engine that closes with `stack`: the named one, the one that was
    started, or one for this command.

    Raises:
        UsageError: an address without its slot folder, or the started server has another model.
    """
    from taliesin.models import resolve as models
    from taliesin.server import process as servers
    from taliesin.server.backend import ServerBackend

    if reach.url is not None:
        if reach.slot_folder is None:
            raise UsageError(
                "--server-url needs --slot-save-path: files reach a server through that folder"
            )
        attached = servers.attach(reach.url, reach.slot_folder, reach.key)
        return stack.enter_context(ServerBackend(model or models.DEFAULT, server=attached))
    held = servers.running()
    if held is None:
        path = models.resolve(model or models.DEFAULT)
        held = stack.enter_context(servers.private(path, options, reach.binary))
    elif model is not None and models.resolve(model) != held.model:
        raise UsageError(
            "the server that runs has another model",
            expected=model,
            got=held.model,
            hint="taliesin server stop",
        )
    return stack.enter_context(ServerBackend(str(held.model), server=held))


def open_engine_for(
    stack: ExitStack, recipe: Mapping[str, Any], model: str, n_tokens: int, reach: Reach
) -> ServerBackend:
    """As `open_engine`; a server that is started for this command computes as a block's recipe
    says, with room for `n_tokens`.
    """
    from taliesin.server.recipe import options_for

    return open_engine(stack, model, options_for(recipe, -(-(n_tokens + 1) // 1024) * 1024), reach)


def graft(
    store: Library,
    block: BlockFile,
    question: str,
    n_predict: int,
    sampling: Sampling,
    *,
    model: str,
    policy: Policy,
    inexact: bool,
    certify: bool,
    reach: Reach,
    as_json: bool,
) -> None:
    """What `taliesin graft --engine server` does and prints."""
    from taliesin.engine.report import report

    header = block.header
    with ExitStack() as stack:
        # A token is at least a byte of the question, or nearly so.
        room = (
            len(header.tokens)
            + len(header.tail)
            + len(question.encode())
            + len(header.after_query)
            + n_predict
            + 64
        )
        engine = open_engine_for(stack, header.recipe, model, room, reach)
        put_back = engine.graft(
            block, library=store, policy=policy, inexact=inexact, certify=certify
        )
        text = "".join(step.text for step in put_back.generate(question, n_predict, sampling))
        url = engine.server.url
    if as_json:
        outcome = report(put_back, text, url=url)
        console.emit_json(outcome.SCHEMA, outcome.as_dict())
        return
    console.out(text)
    restored, asked = put_back.restored, put_back.place.asked
    console.note(
        f"llama-server reused {asked.n_reused} tokens "
        f"({console.human_bytes(restored.read_bytes)}): read "
        f"{restored.read_seconds * 1e3:.1f} ms, restored {restored.place_seconds * 1e3:.1f} ms; "
        f"evaluated {asked.n_prefilled} in {asked.prefill_seconds * 1e3:.1f} ms; generated "
        f"{asked.n_generated} in {asked.generate_seconds:.2f} s"
    )
    (console.note if put_back.exact else console.warn)(put_back.label)


def verify(
    store: Library,
    names: list[str],
    *,
    model: str | None,
    steps: int,
    inexact: bool,
    reach: Reach,
    as_json: bool,
) -> bool:
    """What `taliesin verify --engine server` does and prints; whether every block is exact."""
    from taliesin.server.verify import QUERY_LENGTHS
    from taliesin.server.verify import verify as run_verify

    exact = True
    for each in names:
        with store.open(each) as block, ExitStack() as stack:
            advance = stack.enter_context(console.progress("verify", len(QUERY_LENGTHS), "queries"))

            def on_row(_row: VerifyRow, advance: Callable[[float], None] = advance) -> None:
                advance(1)

            room = len(block.header.tokens) + max(QUERY_LENGTHS) + steps
            engine = open_engine_for(
                stack, block.header.recipe, model_for(block.header.recipe, model), room, reach
            )
            report = run_verify(engine, block, n_steps=steps, inexact=inexact, on_row=on_row)
        exact = exact and report.exact
        if as_json:
            console.emit_json(report.SCHEMA, report.named(each).as_dict())
            continue
        console.out(f"{each}: {report.n_tokens} tokens, on llama-server, {steps} steps a query")
        console.out(
            console.table(
                [
                    "query",
                    "reused",
                    "evaluated",
                    "tokens as live",
                    "log-probabilities",
                    "tokens as one-shot",
                    "log-probabilities",
                ],
                [
                    (
                        r.query_tokens,
                        r.n_reused,
                        r.n_evaluated,
                        r.tokens_block_then_query,
                        r.equal_block_then_query,
                        r.tokens_one_shot,
                        r.equal_one_shot,
                    )
                    for r in report.rows
                ],
            )
        )
        console.out(
            f"first token: fresh {report.fresh_seconds * 1e3:.0f} ms, graft "
            f"{report.graft_seconds * 1e3:.0f} ms "
            f"({report.fresh_seconds / report.graft_seconds:.1f}x)"
        )
        reasons = f" ({'; '.join(report.inexact)})" if report.inexact else ""
        console.out(
            f"{'EXACT' if report.exact else 'NOT EXACT'}{reasons}: {report.level}; promised: "
            f"{report.promise}"
        )
    return exact


def _fields(held: Server) -> dict[str, Any]:
    """What is shown of a server. The key stays in its file."""
    from taliesin.server.slots import Slots as Book

    options = held.options
    book = Book(held.slot_folder, options.n_slots).book() if options else []
    return {
        "url": held.url,
        "pid": held.pid,
        "model": str(held.model),
        "binary": str(held.binary),
        "options": records.plain(options) if options else None,
        "arguments": options.arguments() if options else [],
        "exact": options is not None and not options.inexact(),
        "inexact": options.inexact() if options else [],
        "key_file": str(held.slot_folder.parent / "key"),
        "log": str(held.log),
        "slots": [{"slot": s.number, "block": s.block, "n_tokens": s.n_tokens} for s in book],
    }


def _print(held: Server) -> None:
    fields = _fields(held)
    console.out(f"{fields['url']} (process {fields['pid']}), {fields['model']}")
    console.out("options: " + " ".join(fields["arguments"]))
    console.out("exact" if fields["exact"] else "not exact: " + "; ".join(fields["inexact"]))
    console.out(f"key: {fields['key_file']}; log: {fields['log']}")
    for slot in fields["slots"]:
        if slot["block"]:
            console.out(
                f"slot {slot['slot']}: block {slot['block'][:12]}, {slot['n_tokens']} tokens"
            )


@server.command()
def start(
    model: Model = None,
    slots: Slots = 1,
    ctx: Ctx = 4096,
    threads: Threads = None,
    ubatch: Ubatch = None,
    gpu_layers: GpuLayers = 0,
    port: Annotated[int, typer.Option("--port", help="0 takes a free one.", min=0, max=65535)] = 0,
    swa_full: Annotated[
        bool, typer.Option("--swa-full", help="Window layers keep every position.")
    ] = False,
    binary: ServerBin = None,
    as_json: Json = False,
) -> None:
    """Start a llama-server on 127.0.0.1 and wait until it is healthy; it stays until `taliesin
    server stop`.

    taliesin server start --model gemma3-270m --slots 4

    Its options are the ones that were measured exact, and are printed. Its slot files lie in a
    private folder, and it asks for the key in the key file. A second start with the same options
    finds the first.

    Exit codes: 0 it runs, 2 another one runs, 30 no llama-server, 31 model, 35 it does not start.
    """
    from msgspec.structs import replace

    from taliesin.models import resolve as models
    from taliesin.server import process as servers

    options = replace(
        options_of(default_settings(threads, ubatch), slots, ctx, gpu_layers), swa_full=swa_full
    )
    held = servers.start(models.resolve(model or models.DEFAULT), options, binary=binary, port=port)
    if as_json:
        console.emit_json("taliesin.server.start/1", _fields(held))
    else:
        _print(held)


@server.command()
def stop(as_json: Json = False) -> None:
    """Stop the server that `taliesin server start` made.

    taliesin server stop

    Exit codes: 0 stopped, 3 none was running, 35 it does not end.
    """
    from taliesin.server import process as servers

    stopped = servers.stop()
    if as_json:
        console.emit_json("taliesin.server.stop/1", {"stopped": stopped})
    else:
        console.note("stopped" if stopped else "no server was running")
    if not stopped:
        raise typer.Exit(EXIT_NO)


@server.command()
def status(as_json: Json = False) -> None:
    """Show the server that `taliesin server start` made: address, options, and which slot holds
    which block.

    taliesin server status

    Exit codes: 0 it runs and is healthy, 3 none runs, or it does not answer.
    """
    from taliesin.server import process as servers

    held = servers.running()
    healthy = held is not None and held.client.healthy()
    if as_json:
        console.emit_json(
            "taliesin.server.status/1", {"running": healthy, **(_fields(held) if held else {})}
        )
    elif held is None:
        console.note("no server is running; try: taliesin server start")
    else:
        _print(held)
        if not healthy:
            console.warn("it does not answer")
    if not healthy:
        raise typer.Exit(EXIT_NO)


@slotfile.command()
def show(
    path: Annotated[Path, typer.Argument(help="A file of --slot-save-path.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show what a slot file holds, and whether a stock server will reuse it.

    taliesin slotfile show slots/chat.bin

    Needs no model and no library. The window's width is read off the cells.

    Exit codes: 0 done, 10 no such file, 20-21 not a whole slot file of this build, 34 with images
    or audio.
    """
    from taliesin.state import slotfile as files

    found = files.read(path)
    short = found.windowed and not found.window
    reuse = (
        "reused as it is"
        if not found.windowed or found.laid_out
        else "never reused: all of it is inside the window"
        if short
        else "loaded and then ignored without --swa-full; taliesin slotfile layout mends it"
    )
    fields = {
        "path": str(path),
        "bytes": len(found.data),
        "version": files.VERSION,
        "n_tokens": len(found.tokens),
        "first_tokens": found.tokens[:8].tolist(),
        "packed": found.packed,
        "n_stream": found.n_stream,
        "slot": found.seq_id,
        "window": found.window or None,
        "laid_out": found.laid_out,
        "reuse": reuse,
        "parts": [files.describe(part) for part in found.parts],
    }
    if as_json:
        console.emit_json("taliesin.slotfile.show/1", fields)
        return
    console.out(
        f"{path}: {console.human_bytes(len(found.data))}, {len(found.tokens)} tokens, from slot "
        f"{found.seq_id}"
    )
    console.out(
        f"streams: {found.n_stream}; window: {found.window or ('not shown' if short else 'none')}; "
        f"laid out: {'yes' if found.laid_out else 'no'}"
    )
    rows = [files.describe(part) for part in found.parts]
    names = ["ordinary", "window"]
    console.out(
        console.table(
            ["part", "cells", "positions", "in order", "layers", "bytes"],
            [
                [
                    names[i],
                    r["cells"],
                    "{}..{}".format(*r["positions"]),  # type: ignore[misc]
                    "yes" if r["in_order"] else "no",
                    r["layers"],
                    r["bytes"],
                ]
                for i, r in enumerate(rows)
            ],
        )
    )
    console.out(f"by a stock llama-server: {reuse}")


@slotfile.command()
def layout(
    path: Annotated[Path, typer.Argument(help="A file of --slot-save-path.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write.", show_default=False)
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Replace the file.")] = False,
    ubatch: Annotated[
        int, typer.Option("--ubatch", help="--ubatch-size of the server.", min=1)
    ] = 512,
    ctx: Annotated[
        int, typer.Option("--ctx", help="Tokens of one slot of the server.", min=256)
    ] = 4096,
    parallel: Annotated[
        int | None,
        typer.Option(
            "--parallel",
            help="Slots of the server that restores it; as in the file.",
            min=1,
            show_default=False,
        ),
    ] = None,
    kv_unified: Annotated[
        bool, typer.Option("--kv-unified", help="The slots share one cache; needs --parallel.")
    ] = False,
    swa_full: Annotated[
        bool, typer.Option("--swa-full", help="The server runs with --swa-full.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Lay a slot file out anew, so that a stock llama-server without --swa-full reuses it in full,
    bit for bit.

    taliesin slotfile layout slots/chat.bin --out slots/chat.ring.bin

    For models with sliding-window layers. The options are those of the server that saved it. With
    --kv-unified and several
    slots the file is reused, but what other slots hold changes the sums: not exact.

    Exit codes: 0 written, 2 nothing to lay out, 10 no such file, 20-21 not a whole slot file of
    this build.
    """
    from taliesin.state import slotfile as files

    if (out is None) != in_place:
        raise UsageError("name --out or --in-place")
    if kv_unified and parallel is None:
        raise UsageError("--kv-unified needs --parallel")
    found = files.read(path)
    image = files.relay(
        found,
        n_ubatch=ubatch,
        n_ctx=ctx,
        n_seq_max=(parallel or 1) if kv_unified else 1,
        swa_full=swa_full,
        n_stream=1 if kv_unified else parallel,
    )
    target = out or path
    if not target.parent.is_dir():
        raise UsageError("no such folder", where=target.parent)
    files.write(target, image)
    fields = {
        "path": str(target),
        "bytes": len(image),
        "n_tokens": len(found.tokens),
        "window": found.window,
    }
    if as_json:
        console.emit_json("taliesin.slotfile.layout/1", fields)
    else:
        console.out(str(target))


@slotfile.command()
def export(
    name: BlockName,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write.", show_default=False)
    ],
    parallel: Annotated[
        int, typer.Option("--parallel", help="Slots of the server that restores it.", min=1)
    ] = 1,
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Write a block as a slot file for any llama-server of this build, with separate slots.

    taliesin slotfile export notes --out slots/notes.bin --parallel 4

    Restore it with POST /slots/{id}?action=restore and send prompts that begin with the block's
    token ids to that slot. The server must compute as the block's recipe says (taliesin show):
    --ubatch-size, --threads, --flash-attn on, --cache-ram 0.

    Exit codes: 0 written, 2 usage, 10 no such block, 12 damaged, 20-21 format.
    """
    import mmap

    from taliesin.state import slotfile as files
    from taliesin.store.library import Library

    if not out.parent.is_dir():
        raise UsageError("no such folder", where=out.parent)
    with Library(library, create=False) as store, store.open(name) as block:
        payload = memoryview(mmap.mmap(-1, block.payload_bytes))
        block.read_into([(0, payload)], verify=True)
        header = block.header
        window, ring = (
            int(header.recipe.get(field) or 0) for field in ("window", "window_ring_cells")
        )
        image = files.lay_out(payload, header.tokens, window, ring, parallel)
    files.write(out, image)
    if as_json:
        fields = {
            "path": str(out),
            "bytes": len(image),
            "n_tokens": len(header.tokens),
            "tokens": header.tokens.tolist(),
        }
        console.emit_json("taliesin.slotfile.export/1", fields)
    else:
        console.out(str(out))
