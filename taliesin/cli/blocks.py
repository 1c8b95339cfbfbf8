"""`taliesin save|graft`: a text to a block, and a block back into a context with a question after
it.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from taliesin.cli import server as servers
from taliesin.cli.options import (
    BlockName,
    EngineChoice,
    EngineName,
    GpuLayers,
    Json,
    KvType,
    LibraryPath,
    Model,
    Policy,
    Raw,
    Reach,
    TextFile,
    Threads,
    TypeK,
    TypeV,
    Ubatch,
    default_settings,
    grouped,
    model_for,
    read_text,
)
from taliesin.errors import UsageError
from taliesin.host import console

if TYPE_CHECKING:
    from taliesin.engine.backend import Align, Backend

commands = typer.Typer()


@commands.command()
@grouped
def save(
    text: TextFile,
    name: Annotated[
        str, typer.Option("--name", "-n", help="The block's name.", show_default=False)
    ],
    model: Model = None,
    aligned: Annotated[
        bool,
        typer.Option(
            "--aligned", help="Cut at a multiple of --ubatch: equals the one-shot prompt."
        ),
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Store every token: equals block, then query.")
    ] = False,
    block_tokens: Annotated[
        int | None,
        typer.Option(
            "--block-tokens",
            help="Most tokens in a block; a longer text gives NAME#1, NAME#2, ...",
            min=1,
        ),
    ] = None,
    raw: Raw = False,
    title: Annotated[
        str | None, typer.Option("--title", help="For listings; the text's first line.")
    ] = None,
    replace_existing: Annotated[
        bool, typer.Option("--replace", help="Take the place of a block of that name.")
    ] = False,
    threads: Threads = None,
    ubatch: Ubatch = None,
    type_k: TypeK = KvType.F16,
    type_v: TypeV = KvType.F16,
    flash_attn: Annotated[
        bool, typer.Option("--flash-attn/--no-flash-attn", help="Flash attention.")
    ] = True,
    gpu_layers: GpuLayers = 0,
    engine_name: EngineChoice = EngineName.EMBEDDED,
    reach: Reach = Reach(),
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Prefill a text and store its KV state as a block.

    taliesin save notes.txt --name notes

    A text of at least 4 x --ubatch tokens is cut at the last multiple of --ubatch and its rest kept
    as tokens that are
    prefilled with the query: its graft equals the one-shot prompt bit for bit. A shorter one is
    stored whole: its graft equals block, then query. --aligned and --whole choose.

    Exit codes: 0 stored, 2 usage, 11 locked, 13 no space, 30-34 engine or model.
    """
    if aligned and whole:
        raise UsageError("--aligned and --whole contradict each other")
    content = read_text(text)
    from taliesin.engine.embedded import Engine
    from taliesin.engine.save import save
    from taliesin.models import resolve as models
    from taliesin.store.library import Library

    align: Align = "aligned" if aligned else "whole" if whole else "auto"
    settings = replace(
        default_settings(threads, ubatch),
        type_k=type_k.value,
        type_v=type_v.value,
        flash_attn=flash_attn,
    )
    with ExitStack() as stack:
        store = stack.enter_context(Library(library))
        if engine_name is EngineName.SERVER:
            options = servers.options_of(settings, gpu_layers=gpu_layers)
            backend: Backend = servers.open_engine(stack, model, options, reach)
        else:
            backend = stack.enter_context(
                Engine(model or models.DEFAULT, settings=settings, gpu_layers=gpu_layers)
            )
        advance = stack.enter_context(console.progress("prefill", 1, "texts"))
        saved = save(
            backend,
            store,
            content,
            name,
            align=align,
            block_tokens=block_tokens,
            raw=raw,
            title=title,
            replace_existing=replace_existing,
            on_block=lambda _done, count: advance(1 / count),
        )
    rows = [
        {
            "name": s.info.name,
            "id": s.info.id,
            "n_tokens": len(s.header.tokens),
            "n_tail": len(s.header.tail),
            "file_bytes": s.info.file_bytes,
            "equals": s.header.equals,
            "prefill_seconds": s.prefill_seconds,
            "save_seconds": s.save_seconds,
        }
        for s in saved
    ]
    if as_json:
        console.emit_json("taliesin.save/1", {"blocks": rows})
        return
    for s in saved:
        tail = f" + {len(s.header.tail)} kept for the query" if len(s.header.tail) else ""
        console.note(
            f"{s.info.name}: {len(s.header.tokens)} tokens{tail}, "
            f"{console.human_bytes(s.info.file_bytes)}, prefill "
            f"{s.prefill_seconds:.2f} s, write {s.save_seconds:.3f} s; a graft equals "
            f"{s.header.equals}"
        )
        console.out(s.info.id)


@commands.command("graft")
@grouped
def graft_block(
    name: BlockName,
    prompt: Annotated[
        str, typer.Option("--prompt", "-p", help="The question; - reads stdin.", show_default=False)
    ],
    n_predict: Annotated[
        int, typer.Option("-n", "--n-predict", help="Most tokens to generate.", min=0)
    ] = 128,
    temperature: Annotated[
        float, typer.Option("--temperature", help="0 is greedy.", min=0.0)
    ] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", min=0)] = 40,
    top_p: Annotated[float, typer.Option("--top-p", min=0.0, max=1.0)] = 0.95,
    min_p: Annotated[float, typer.Option("--min-p", min=0.0, max=1.0)] = 0.05,
    seed: Annotated[
        int, typer.Option("--seed", help="Of the sampler, with --temperature.", min=0)
    ] = 0,
    certify: Annotated[
        bool, typer.Option("--certify", help="Re-run the block's certificate first.")
    ] = False,
    policy: Annotated[
        Policy,
        typer.Option(
            "--verify", help="Hash the payload: once for each file as it is, always, never."
        ),
    ] = Policy.ONCE,
    inexact: Annotated[
        bool, typer.Option("--inexact", help="Graft under another recipe, and say so.")
    ] = False,
    model: Model = None,
    threads: Threads = None,
    ubatch: Ubatch = None,
    gpu_layers: GpuLayers = 0,
    engine_name: EngineChoice = EngineName.EMBEDDED,
    reach: Reach = Reach(),
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Put a block back and answer a question after it: the text on stdout, what was done on stderr.

    taliesin graft notes --prompt "Who kept the light?"

    The block's own recipe decides the settings; --threads and --ubatch differ from it only with
    --inexact. Where CPU, engine libraries or driver differ from the saving machine's, the
    certificate is re-run first.

    Exit codes: 0 done, 2 usage, 10 no such block, 12 damaged, 20-21 format, 22 other recipe, 23 the
    certificate does not hold, 30-34 engine or model, 35 llama-server.
    """
    question = read_text("-") if prompt == "-" else prompt
    from taliesin.engine.embedded import Engine
    from taliesin.engine.llama import Sampling
    from taliesin.engine.report import report
    from taliesin.store.library import Library

    overrides = {k: v for k, v in (("n_threads", threads), ("n_ubatch", ubatch)) if v is not None}
    sampling = Sampling(temperature, top_k, top_p, min_p, seed)
    with Library(library, create=False) as store, store.open(name) as block:
        header = block.header
        if engine_name is EngineName.SERVER:
            if overrides:
                raise UsageError(
                    "a server's --threads and --ubatch are its own", hint="taliesin server start"
                )
            servers.graft(
                store,
                block,
                question,
                n_predict,
                sampling,
                model=model_for(header.recipe, model),
                policy=policy.value,
                inexact=inexact,
                certify=certify,
                reach=reach,
                as_json=as_json,
            )
            return
        with Engine(model_for(header.recipe, model), gpu_layers=gpu_layers) as engine:
            n_query = (
                len(header.tail)
                + len(engine.model.tokenize(question, special=False))
                + len(header.after_query)
            )
            put_back = engine.graft(
                block,
                library=store,
                policy=policy.value,
                overrides=overrides,
                inexact=inexact,
                certify=certify,
                n_extra=n_query + n_predict,
            )
            pieces = []
            for step in put_back.generate(question, n_predict, sampling):
                pieces.append(step.text)
                if not as_json:
                    sys.stdout.write(step.text)
                    sys.stdout.flush()
    if as_json:
        outcome = report(put_back, "".join(pieces))
        console.emit_json(outcome.SCHEMA, outcome.as_dict())
        return
    if pieces:
        console.out()
    done, asked = put_back.restored, put_back.place.asked
    proof = (
        f", certificate in {put_back.certify_seconds * 1e3:.0f} ms" if put_back.certified else ""
    )
    console.note(
        f"restored {done.n_tokens} tokens ({console.human_bytes(done.read_bytes)}): read "
        f"{done.read_seconds * 1e3:.1f} ms, placed {done.place_seconds * 1e3:.1f} ms{proof}; "
        f"prefilled {asked.n_prefilled} tokens in {asked.prefill_seconds * 1e3:.1f} ms; generated "
        f"{asked.n_generated} in {asked.generate_seconds:.2f} s"
    )
    (console.warn if put_back.differences else console.note)(put_back.label)
