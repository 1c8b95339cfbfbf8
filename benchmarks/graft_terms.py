"""Where the time of a graft to a GPU goes, step by step: reading by number of threads, locking,
clearing, each restore, the token.

    python benchmarks/graft_terms.py m12.gguf --lengths 748 5977 11994 --kv f16 q8_0 --out
    benchmarks/results/gpu/graft_terms.json

Explains what `taliesin bench` measures as a whole; blocks are seeded token ids, files are in the
page cache. Every figure is a median in milliseconds. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from taliesin.engine import graft, llama
from taliesin.engine.embedded import Engine
from taliesin.engine.save import save_tokens
from taliesin.engine.staging import Staging, fresh
from taliesin.host import machine, pagelock
from taliesin.measure import bench
from taliesin.state import placement
from taliesin.store.blockfile import BlockFile
from taliesin.store.library import Library

SCHEMA = "taliesin.bench.graft-terms/1"
THREADS = (1, 2, 4, 8, 16)


def milliseconds(
    operation: Callable[[], object], times: int = 5, before: Callable[[], object] = lambda: None
) -> float:
    found = []
    for _ in range(times):
        before()
        started = time.perf_counter()
        operation()
        found.append((time.perf_counter() - started) * 1e3)
    return statistics.median(found)


def locking(n_bytes: int) -> dict[str, float]:
    """Of new memory, and of memory whose pages were written before; and a copy from each kind to
    the GPU.
    """
    terms = {}
    for name in ("untouched", "touched"):
        memory = fresh(n_bytes, ())
        if name == "touched":
            np.frombuffer(memory, np.uint8)[:] = 1
            terms["copy, not locked"] = (pagelock.copy_seconds(memory) or 0.0) * 1e3
        terms[f"lock, {name}"] = milliseconds(lambda memory=memory: pagelock.lock(memory), times=1)
        terms["copy, locked"] = (pagelock.copy_seconds(memory) or 0.0) * 1e3
        pagelock.unlock(memory)
    return terms


def placing(context: llama.Context, prepared: graft.Prepared, n_tokens: int) -> dict[str, float]:
    """The steps of `graft.apply` on a context that holds the block and a token, then that token
    again.
    """
    samples: dict[str, list[float]] = {}
    for _ in range(7):
        buffers = iter(prepared.buffers)
        steps: list[tuple[str, Callable[[], object]]] = [("clear", context.clear)]
        for number, step in enumerate(prepared.steps):
            if isinstance(step, placement.Restore):
                steps.append(
                    (f"restore {number}", lambda buffers=buffers: context.restore(next(buffers)))
                )
            else:
                steps.append((f"free {number}", lambda step=step: context.remove(*step)))
        steps.append(("token", lambda: context.decode([5], n_tokens)))
        for name, operation in steps:
            samples.setdefault(name, []).append(milliseconds(operation, times=1))
    return {name: statistics.median(found[1:]) for name, found in samples.items()}


def terms(engine: Engine, block: BlockFile) -> dict[str, Any]:
    n_tokens = len(block.header.tokens)
    context = engine.context(replace(engine.settings, n_ctx=256), n_tokens + 16)
    staging = engine.staging or Staging()
    row: dict[str, Any] = {
        "kv": engine.settings.type_k,
        "n_tokens": n_tokens,
        "stored_bytes": block.payload_bytes,
    }
    row["first prepare"] = milliseconds(
        lambda: engine.prepare(context, block, verify=False), times=1
    )
    for threads in THREADS:
        row[f"prepare, {threads} threads"] = milliseconds(
            lambda threads=threads: graft.prepare(
                context, block, verify=False, threads=threads, staging=staging
            )
        )
    row["prepare, hashed"] = milliseconds(lambda: engine.prepare(context, block, verify=True))
    prepared = engine.prepare(context, block, verify=False)
    row |= {
        "written_bytes": prepared.nbytes,
        "recipe": milliseconds(lambda: engine.recipe(context)),
    }
    row |= placing(context, prepared, n_tokens)
    return row | locking(prepared.nbytes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--lengths", nargs="+", type=int, default=bench.LENGTHS, metavar="N")
    parser.add_argument("--kv", nargs="+", default=["f16"], help="types of K and V in the cache")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--gpu-layers", type=int, default=-1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    settings = llama.Settings(n_threads=options.threads)
    document: dict[str, Any] = {"schema": SCHEMA, "machine": machine.describe(), "rows": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        Library(Path(folder) / "library") as library,
        Engine(str(options.model), settings, options.gpu_layers) as engine,
    ):
        document["devices"] = engine.model.devices
        for kind in options.kv:
            engine.settings = replace(settings, type_k=kind, type_v=kind)
            for n_tokens in options.lengths:
                ids = np.random.default_rng(n_tokens).integers(
                    10, engine.model.n_vocab - 10, n_tokens
                )
                saved = save_tokens(
                    engine, library, ids.tolist(), f"{kind}-{n_tokens}", align="whole"
                )
                with library.open(saved.info.id) as block:
                    document["rows"].append(terms(engine, block))
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
