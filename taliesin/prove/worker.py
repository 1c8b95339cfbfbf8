"""One side of a verification, in a process of its own: a `verify.Job` on stdin, one JSON line per
run on stdout.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from taliesin.engine import certificate, graft, llama
from taliesin.engine.backend import Grafted
from taliesin.engine.embedded import Engine, InContext, settings_of
from taliesin.errors import ToolkitError
from taliesin.host import console
from taliesin.prove.verify import Job, Run, Sabotage, store
from taliesin.state import placement
from taliesin.store.blockfile import BlockFile


def fresh(job: Job, engine: Engine, block: BlockFile) -> Iterator[Run]:
    """Reference runs: a new context for each query, the block and the query prefilled (as one
    prompt in role "one-shot").
    """
    tokens = block.header.tokens.tolist()
    settings = settings_of(block.header.recipe, block.path, {})
    for trial in range(job.trials):
        for number, query in enumerate(job.queries):
            room = len(tokens) + len(query) + job.n_steps
            with llama.Context(engine.model, replace(settings, n_ctx=room)) as context:
                started = time.perf_counter()
                prompt, position = [*tokens, *query], 0
                if job.role == "fresh":
                    context.decode(tokens, 0, logits=False)
                    prompt, position = query, len(tokens)
                yield _run(
                    job, context, prompt, position, trial=trial, query=number, started=started
                )


def grafted(job: Job, engine: Engine, block: BlockFile) -> Iterator[Run]:
    """Tested runs: a new context for each trial, a decoy decoded in it, then a graft for each
    query.
    """
    sabotage = Sabotage(job.sabotage) if job.sabotage else None
    n_tokens = len(block.header.tokens)
    settings = settings_of(block.header.recipe, block.path, {})
    overrides: dict[str, Any] = {}
    if sabotage is Sabotage.THREADS:
        overrides["n_threads"] = 1 if settings.n_threads > 1 else 2
    room = max(map(len, job.queries)) + job.n_steps + 1
    for trial in range(job.trials):
        engine.drop_context()
        engine.context(replace(settings, **overrides), n_tokens + room).decode(job.decoy, 0)
        for number, query in enumerate(job.queries):
            started = time.perf_counter()
            put_back = engine.graft(
                block, overrides=overrides, inexact=sabotage is not None, n_extra=room
            )
            position = n_tokens + _break(sabotage, put_back, block)
            yield _run(
                job,
                put_back.place.context,
                query,
                position,
                trial=trial,
                query=number,
                started=started,
            )


def _run(
    job: Job,
    context: llama.Context,
    prompt: list[int],
    position: int,
    *,
    trial: int,
    query: int,
    started: float,
) -> Run:
    digests: list[str] = []
    first_seconds = 0.0
    for logits in llama.greedy(context, prompt, position, job.n_steps):
        if not digests:
            first_seconds = time.perf_counter() - started
        digest = certificate.digest(logits)
        store(Path(job.vectors), digest, logits)
        digests.append(digest)
    return Run(trial, query, digests, first_seconds)


def _break(sabotage: Sabotage | None, put_back: Grafted[InContext], block: BlockFile) -> int:
    """Break a graft in the named way; gives how far the query's position moves with it."""
    context, prepared = put_back.place.context, put_back.place.prepared
    if sabotage is Sabotage.PLAIN_SWA:
        payload = bytearray(block.read_at(0, block.payload_bytes))
        context.clear()
        context.restore(memoryview(payload))
    elif sabotage is Sabotage.SHIFT:
        context.shift(1)
        return 1
    elif sabotage is Sabotage.BITFLIP:
        _flip(prepared)
        graft.apply(context, prepared)
    return 0


def _flip(prepared: graft.Prepared) -> None:
    """Double or halve the first stored value of the last cell in the first ordinary layer's K:
    visible to every query.
    """
    last = [step for step in prepared.steps if isinstance(step, placement.Restore)][-1]
    buffer = prepared.buffers[-1]
    # ordinary part: prefix 8, counts 8, cells 12 each, layer counts 8, first K header 12 (type i32,
    # row bytes u64)
    rows = 16 + 12 * prepared.n_tokens + 8 + 12
    row_bytes = int.from_bytes(buffer[rows - 8 : rows], "little")
    assert last.n_bytes == len(buffer)
    # lowest exponent bit of a float16: stays finite
    buffer[rows + (prepared.n_tokens - 1) * row_bytes + 1] ^= 0x04


def main() -> None:
    job = Job(**json.load(sys.stdin))
    try:
        with (
            Engine(job.model, gpu_layers=job.gpu_layers) as engine,
            BlockFile.open(Path(job.block)) as block,
        ):
            runs = grafted(job, engine, block) if job.role == "graft" else fresh(job, engine, block)
            for run in runs:
                console.out(console.json_line(run._asdict()))
                sys.stdout.flush()
    except ToolkitError as error:
        console.out(console.json_line({"error": error.as_dict()}))


if __name__ == "__main__":
    main()
