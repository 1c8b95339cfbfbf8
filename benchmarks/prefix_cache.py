"""Conversations through the prefix cache, each request beside a cold run of it: are all bits equal,
how much was reused, how long does each take.

    python benchmarks/prefix_cache.py --out benchmarks/results/prefix_cache.json

Seeded conversations over the shipped text take turns: one system prompt for all, each turn adds
the last answer and a new message. Every request is answered through the cache and by a cold engine
in a context of its own, right after each other, and the SHA-256 of each logits vector is compared:
of the prompt, and of every generated token. Half way the cache is closed and opened again, so that
what was known comes from the disk. Every request's counts and seconds are in the result.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from taliesin.engine.embedded import Engine
from taliesin.engine.llama import Context, Settings, greedy
from taliesin.engine.prefill import PrefixCache
from taliesin.host import console, machine
from taliesin.host.places import data_dir
from taliesin.store.pieces import PieceStore

N_CTX = 4096
TALKS = 3


def digests(
    context: Context, logits: Any, position: int, steps: int
) -> tuple[list[str], list[int]]:
    """SHA-256 of `logits` and of `steps` - 1 greedy vectors after them, and the ids chosen."""
    token = int(logits.argmax())
    found, chosen = [hashlib.sha256(logits.tobytes()).hexdigest()], [token]
    for vector in greedy(context, [token], position, steps - 2):
        found.append(hashlib.sha256(vector.tobytes()).hexdigest())
        chosen.append(int(vector.argmax()))
    return found, chosen[:steps]


def measure(name: str, n_ubatch: int, requests: int, steps: int, folder: Path) -> dict[str, Any]:
    """Rows of `requests` requests, one in turn of `TALKS` conversations."""
    rng = random.Random(0)
    text = (data_dir() / "texts" / "skellan_light.txt").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = []
    with Engine(name, Settings(n_ubatch=n_ubatch, n_threads=2)) as engine, ExitStack() as stack:
        words = engine.model.tokenize(text, special=False)
        system = words[:600]
        talks = [list(system) for _ in range(TALKS)]
        cold = stack.enter_context(Context(engine.model, replace(engine.settings, n_ctx=N_CTX)))
        opened = stack.enter_context(ExitStack())
        for number in range(requests):
            if number in (0, requests // 2):
                opened.close()
                cache = opened.enter_context(PrefixCache(engine, N_CTX))
                cache.store = opened.enter_context(
                    PieceStore(folder, cache.recipe_id, budget_bytes=1 << 32)
                )
            talk = talks[rng.randrange(TALKS)]
            start = rng.randrange(len(words) - 120)
            talk += words[start : start + rng.randint(20, 120)]
            started = time.perf_counter()
            done = cache.prefill(talk)
            warm_seconds = time.perf_counter() - started
            got, answer = digests(done.context, done.logits, len(talk), steps)
            cache.commit()
            cold.clear()
            started = time.perf_counter()
            logits = cold.decode(talk, 0)
            cold_seconds = time.perf_counter() - started
            wanted, _ = digests(cold, logits, len(talk), steps)
            rows.append(
                {
                    "prompt_tokens": len(talk),
                    "reused_tokens": done.reused,
                    "place": done.place,
                    "vectors": len(wanted),
                    "equal": sum(a == b for a, b in zip(got, wanted, strict=True)),
                    "warm_seconds": warm_seconds,
                    "cold_seconds": cold_seconds,
                }
            )
            talk += answer
        sha256 = engine.model_sha256
    total = {
        key: sum(row[key] for row in rows)
        for key in ("prompt_tokens", "reused_tokens", "vectors", "equal")
    }
    seconds = {key: sum(row[key] for row in rows) for key in ("warm_seconds", "cold_seconds")}
    return {
        "model": name,
        "model_sha256": sha256,
        "n_ubatch": n_ubatch,
        **total,
        **seconds,
        "requests": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["smollm2-135m", "gemma3-270m"])
    parser.add_argument("--ubatch", nargs="+", type=int, default=[128, 512])
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    facts = machine.describe()
    results = []
    for name in options.models:
        for n_ubatch in options.ubatch:
            with tempfile.TemporaryDirectory() as folder:
                results.append(
                    measure(name, n_ubatch, options.requests, options.steps, Path(folder))
                )
    report = {
        "schema": "taliesin.bench.prefix-cache/1",
        "machine": facts | {"load_average_after": machine.load_average()},
        "results": results,
    }
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    rows = [
        (
            row["model"],
            row["n_ubatch"],
            f"{row['equal']} of {row['vectors']}",
            f"{row['reused_tokens'] / row['prompt_tokens']:.1%}",
            f"{row['cold_seconds'] / row['warm_seconds']:.2f}",
        )
        for row in results
    ]
    console.out(console.table(["model", "pieces of", "equal", "reused", "cold / warm"], rows))


if __name__ == "__main__":
    main()
