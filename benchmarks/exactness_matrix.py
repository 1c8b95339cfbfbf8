"""Every vector of every graft against a fresh run: models x lengths x queries, written row by row.

    python benchmarks/exactness_matrix.py --out benchmarks/results/exactness_matrix.json

A row is one model at one block length: `taliesin.prove.verify` computes the reference in one
process and the graft, after a decoy, in
another, for queries of 1, 7, 64 and 600 tokens and 16 greedy steps each: 68 vectors by SHA-256.
Blocks are seeded token ids, stored whole. The one-shot prompt is computed where the block promises
to equal it (lengths that are a multiple of n_ubatch).

Takes up again where it was stopped: a row of the same model file, length, seed and recipe is not
repeated. Exit code 3 if a vector
differs. The machine may be busy: nothing here is a timing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from synthesise import SHAPES, write

from taliesin.engine import llama
from taliesin.engine.embedded import Engine
from taliesin.engine.save import save_tokens
from taliesin.errors import EXIT_NO
from taliesin.host import console, machine
from taliesin.models import resolve as models
from taliesin.prove.verify import QUERY_LENGTHS, STEPS, verify
from taliesin.store.library import Library, recipe_id

SCHEMA = "taliesin.bench.exactness-matrix/1"
LENGTHS = (64, 300, 512, 777, 1024, 1500, 2048, 3000)
MODELS: dict[str, tuple[int, ...]] = {
    "gemma4-tiny": LENGTHS,
    "gemma4-tiny-shared": LENGTHS,
    "gemma3-270m": LENGTHS,
    "smollm2-135m": (*LENGTHS, 8000),
}
SEED = 0


def model_path(name: str, folder: Path) -> Path:
    """A catalogue name's file; the synthetic shapes are written into `folder`, the same bytes each
    time.
    """
    if not name.startswith("gemma4-tiny"):
        return models.resolve(name)
    return write(folder / f"{name}.gguf", SHAPES[name])


def measure(
    name: str, path: Path, lengths: tuple[int, ...], done: set[tuple[Any, ...]]
) -> Iterator[dict[str, Any]]:
    """Rows of one model, without those in `done`."""
    with tempfile.TemporaryDirectory() as folder, Library(Path(folder) / "library") as library:
        for n_tokens in lengths:
            with Engine(str(path), settings=llama.Settings()) as engine:
                with engine.new_context(engine.settings, 256) as context:
                    recipe = engine.recipe(context)
                if (engine.model_sha256, n_tokens, SEED, recipe_id(recipe)) in done:
                    continue
                began = time.perf_counter()
                tokens = np.random.default_rng([SEED, n_tokens]).integers(
                    10, engine.model.n_vocab, n_tokens
                )
                block_id = save_tokens(
                    engine, library, tokens.tolist(), f"{n_tokens}", align="whole"
                ).info.id
            with library.open(block_id) as block:
                report = verify(block, path, trials=1, one_shot=False).as_dict()
            library.remove(f"{n_tokens}")
            yield {
                "model": name,
                "model_sha256": report["recipe"]["model_sha256"],
                "n_tokens": n_tokens,
                "seed": SEED,
                "recipe_id": recipe_id(report["recipe"]),
                "seconds": time.perf_counter() - began,
                "load_average": os.getloadavg(),
                "report": report,
            }


def counts(row: dict[str, Any]) -> tuple[int, int]:
    """(equal, compared) vectors of a row: against block-then-query, and against one-shot where it
    is promised.
    """
    n = equal = 0
    for query in row["report"]["rows"]:
        for key in ("equal_block_then_query", "equal_one_shot"):
            if query[key] is not None:
                n += query["n_vectors"]
                equal += query[key]
    return equal, n


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument(
        "--lengths", nargs="+", type=int, help="only these of each model's lengths", metavar="N"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="read first: rows that are there stay"
    )
    options = parser.parse_args()
    kept = json.loads(options.out.read_text()) if options.out.exists() else {"rows": []}
    rows: list[dict[str, Any]] = kept["rows"]
    done = {(row["model_sha256"], row["n_tokens"], row["seed"], row["recipe_id"]) for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            lengths = tuple(n for n in MODELS[name] if not options.lengths or n in options.lengths)
            for row in measure(name, model_path(name, Path(folder)), lengths, done):
                rows.append(row)
                equal, n = counts(row)
                console.note(
                    f"{name} {row['n_tokens']}: {equal} of {n} equal, {row['seconds']:.0f} s"
                )
                document = {
                    "schema": SCHEMA,
                    "machine": machine.describe(),
                    "query_tokens": QUERY_LENGTHS,
                    "steps": STEPS,
                    "rows": rows,
                }
                draft = options.out.with_suffix(".part")
                draft.write_text(json.dumps(document, indent=1) + "\n")
                draft.replace(options.out)
    found = [
        (row["model"], row["n_tokens"], row["report"]["promise"], *counts(row)) for row in rows
    ]
    console.out(console.table(["model", "tokens", "promise", "equal", "of"], found))
    equal, n = (sum(column) for column in zip(*((r[3], r[4]) for r in found), strict=True))
    console.out(f"{equal} of {n} vectors equal")
    sys.exit(0 if equal == n else EXIT_NO)


if __name__ == "__main__":
    main()
