"""Putting a block's state into a context against a plain copy of as many bytes in memory.

    python benchmarks/restore_speed.py --out benchmarks/results/restore_speed.json

Each round times, in turn: `graft.apply` of a block that is ready in memory (what `place_seconds`
reports: every byte handed to llama.cpp, filler of the window ring included); `numpy.copyto` of that
many bytes between two arrays that were touched before; and the same copy into memory that was never
touched. The target is half the speed of the copy between touched arrays. Every timing is in the
result; the script reports, it does not judge.
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from taliesin.engine import graft, llama
from taliesin.engine.embedded import Engine, settings_of
from taliesin.engine.save import save_tokens
from taliesin.host import console, machine
from taliesin.models import resolve as models
from taliesin.store.library import Library


def copy_seconds(
    source: np.ndarray[Any, np.dtype[np.uint8]], target: np.ndarray[Any, np.dtype[np.uint8]]
) -> float:
    started = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - started


def untouched(n_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Memory whose pages the kernel has not given out yet."""
    return np.frombuffer(mmap.mmap(-1, n_bytes), np.uint8)


def measure(name: str, n_tokens: int, rounds: int) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Library(Path(folder) / "library") as library,
        Engine(str(models.resolve(name)), settings=llama.Settings()) as engine,
    ):
        tokens = np.random.default_rng(0).integers(10, engine.model.n_vocab, n_tokens).tolist()
        block_id = save_tokens(engine, library, tokens, "block", align="whole").info.id
        samples = []
        with library.open(block_id) as block:
            context = engine.context(
                settings_of(block.header.recipe, block.path, {}), n_tokens + 64
            )
            prepared = graft.prepare(context, block, verify=True)
            source, target = np.ones(prepared.nbytes, np.uint8), np.ones(prepared.nbytes, np.uint8)
            for round_number in range(-1, rounds):
                sample = {
                    "place_seconds": graft.apply(context, prepared),
                    "copy_seconds": copy_seconds(source, target),
                    "copy_untouched_seconds": copy_seconds(source, untouched(prepared.nbytes)),
                }
                if round_number >= 0:  # the first round warms up
                    samples.append(sample)
            medians = {key: statistics.median(s[key] for s in samples) for key in samples[0]}
            return {
                "model": name,
                "model_sha256": engine.model_sha256,
                "n_tokens": n_tokens,
                "stored_bytes": block.payload_bytes,
                "written_bytes": prepared.nbytes,
                "rounds": samples,
                "median": medians,
                "fraction_of_copy_speed": medians["copy_seconds"] / medians["place_seconds"],
                "fraction_by_round": [s["copy_seconds"] / s["place_seconds"] for s in samples],
                "fraction_of_untouched_copy_speed": medians["copy_untouched_seconds"]
                / medians["place_seconds"],
            }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["smollm2-135m", "gemma3-270m"])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    facts = machine.describe()
    results = [measure(name, options.tokens, options.rounds) for name in options.models]
    report = {
        "schema": "taliesin.bench.restore-speed/1",
        "machine": facts | {"load_average_after": machine.load_average()},
        "results": results,
    }
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    rows = []
    for found in results:
        rates = {
            key: found["written_bytes"] / seconds / 1e9 for key, seconds in found["median"].items()
        }
        rows.append(
            (
                found["model"],
                found["n_tokens"],
                f"{found['written_bytes'] / 1e6:.1f}",
                f"{found['median']['place_seconds'] * 1e3:.2f}",
                *(
                    f"{rates[key]:.1f}"
                    for key in ("place_seconds", "copy_seconds", "copy_untouched_seconds")
                ),
                f"{found['fraction_of_copy_speed']:.2f}",
            )
        )
    headers = [
        "model",
        "tokens",
        "MB written",
        "ms",
        "restore GB/s",
        "copy GB/s",
        "copy, untouched GB/s",
        "of the copy",
    ]
    console.out(console.table(headers, rows))


if __name__ == "__main__":
    main()
