"""Every vector of every graft against a fresh run, on a GPU: lengths of one model, one KV type, row
by row.

    python benchmarks/verify_gpu.py 12b.gguf --kv q8_0 --lengths 748 5977 11994 --out
    benchmarks/results/gpu/verify_12b_q8.json

As `exactness_matrix.py`, but on the device, with more trials, and for models without a tokenizer:
blocks are seeded token ids, stored whole. Grafts are tried --trials times, and the fresh reference
is computed --fresh-trials times. Each run's vectors also go to OUT.runs.jsonl as they are computed
(the first 16 digits of each SHA-256), so that an interrupted row can still be compared by hand.
Exit code 3 if a vector differs, as with --sabotage one must. Times in the report are no
measurements: several of these may share the GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from taliesin.engine import llama
from taliesin.engine.embedded import Engine
from taliesin.engine.save import save_tokens
from taliesin.errors import EXIT_NO
from taliesin.host import console, machine
from taliesin.prove.verify import QUERY_LENGTHS, STEPS, Run, Sabotage, verify
from taliesin.store.library import Library

SCHEMA = "taliesin.bench.verify-gpu/1"
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--kv", default="f16", help="type of K and V in the cache")
    parser.add_argument("--lengths", nargs="+", type=int, required=True, metavar="N")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--fresh-trials", type=int, default=2)
    parser.add_argument(
        "--sabotage", type=Sabotage, choices=list(Sabotage), help="break every graft in this way"
    )
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--gpu-layers", type=int, default=-1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    settings = llama.Settings(n_threads=options.threads, type_k=options.kv, type_v=options.kv)
    document = {
        "schema": SCHEMA,
        "machine": machine.describe(),
        "query_tokens": QUERY_LENGTHS,
        "steps": STEPS,
        "rows": [],
    }
    rows: list[dict[str, object]] = document["rows"]  # type: ignore[assignment]
    exact = True
    with (
        tempfile.TemporaryDirectory() as folder,
        Library(Path(folder) / "library") as library,
        options.out.with_suffix(".runs.jsonl").open("w") as lines,
    ):
        with Engine(str(options.model), settings=settings, gpu_layers=options.gpu_layers) as engine:
            blocks = {}
            for n_tokens in options.lengths:
                tokens = np.random.default_rng([SEED, n_tokens]).integers(
                    10, engine.model.n_vocab, n_tokens
                )
                saved = save_tokens(engine, library, tokens.tolist(), f"{n_tokens}", align="whole")
                blocks[n_tokens] = saved.info.id
        for n_tokens, block_id in blocks.items():

            def keep(role: str, run: Run, n_tokens: int = n_tokens) -> None:
                digests = [digest[:16] for digest in run.digests]
                lines.write(json.dumps([n_tokens, role, run.trial, run.query, digests]) + "\n")
                lines.flush()

            began = time.perf_counter()
            with library.open(block_id) as block:
                report = verify(
                    block,
                    options.model,
                    gpu_layers=options.gpu_layers,
                    trials=options.trials,
                    fresh_trials=options.fresh_trials,
                    sabotage=options.sabotage,
                    one_shot=False,
                    on_run=keep,
                )
            exact = exact and report.exact
            rows.append(
                {
                    "fresh_trials": options.fresh_trials,
                    "seed": SEED,
                    "seconds": time.perf_counter() - began,
                    **report.as_dict(),
                }
            )
            options.out.write_text(json.dumps(document, indent=1) + "\n")
            console.note(
                f"{options.model.stem} {options.kv} {n_tokens}: "
                f"{'exact' if report.exact else 'NOT EXACT'}"
            )
    sys.exit(0 if exact else EXIT_NO)


if __name__ == "__main__":
    main()
