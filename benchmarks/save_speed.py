"""Storing a block in a library against a plain write and fsync of as many bytes.

    python benchmarks/save_speed.py --out benchmarks/results/save_speed.json

Each round times, in alternating order and on the same file system: `Library.put` of a real block
(hashing, writing, fsync of file and folders, reading the header back, naming, index) and a plain
write and fsync of the block file's bytes into a new file. Every round's block differs in its title,
so that none is there already. The target is twice the plain write. Every timing is in the result;
the script reports, it does not judge. `block_write.py` measures the file alone, at more sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from taliesin.engine import llama
from taliesin.engine.embedded import Engine
from taliesin.engine.save import save_tokens
from taliesin.host import console, machine
from taliesin.models import resolve as models
from taliesin.store.header import BlockHeader
from taliesin.store.library import Library


def plain_seconds(path: Path, data: bytes) -> float:
    started = time.perf_counter()
    with path.open("xb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    path.unlink()
    return seconds


def put_seconds(library: Library, header: BlockHeader, payload: bytes) -> float:
    started = time.perf_counter()
    library.put("block", header, payload)
    seconds = time.perf_counter() - started
    library.remove("block")
    return seconds


def measure(name: str, n_tokens: int, rounds: int, folder: Path) -> dict[str, Any]:
    with Library(folder / "library") as library:
        with Engine(str(models.resolve(name)), settings=llama.Settings()) as engine:
            tokens = np.random.default_rng(0).integers(10, engine.model.n_vocab, n_tokens).tolist()
            info = save_tokens(engine, library, tokens, "first", align="whole").info
            model_sha256 = engine.model_sha256
        with library.open(info.id) as block:
            header, payload, data = (
                block.header,
                block.read_at(0, block.payload_bytes),
                b"".join(block.file_bytes()),
            )
        library.remove("first")
        samples: list[dict[str, float]] = []
        for number in range(-1, rounds):
            titled = replace(header, title=f"round {number}")
            sample: dict[str, float] = {}
            for which in ("put", "plain") if number % 2 else ("plain", "put"):
                if which == "put":
                    sample["put_seconds"] = put_seconds(library, titled, payload)
                else:
                    sample["plain_seconds"] = plain_seconds(folder / "plain", data)
            if number >= 0:  # the first round warms up
                samples.append(sample)
    medians = {
        key: statistics.median(s[key] for s in samples) for key in ("put_seconds", "plain_seconds")
    }
    return {
        "model": name,
        "model_sha256": model_sha256,
        "n_tokens": n_tokens,
        "file_bytes": info.file_bytes,
        "rounds": samples,
        "median": medians,
        "ratio": medians["put_seconds"] / medians["plain_seconds"],
        "ratio_by_round": [s["put_seconds"] / s["plain_seconds"] for s in samples],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["smollm2-135m", "gemma3-270m"])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--folder", type=Path, help="where to write; the system's temporary folder if not given"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    facts = machine.describe()
    results = []
    for name in options.models:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            results.append(measure(name, options.tokens, options.rounds, Path(folder)))
    report = {
        "schema": "taliesin.bench.save-speed/1",
        "machine": facts | {"load_average_after": machine.load_average()},
        "results": results,
    }
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    rows = [
        (
            found["model"],
            found["n_tokens"],
            f"{found['file_bytes'] / 1e6:.1f}",
            f"{found['median']['put_seconds'] * 1e3:.0f}",
            f"{found['median']['plain_seconds'] * 1e3:.0f}",
            f"{found['ratio']:.2f}",
            f"{min(found['ratio_by_round']):.2f} to {max(found['ratio_by_round']):.2f}",
        )
        for found in results
    ]
    console.out(
        console.table(["model", "tokens", "MB", "put ms", "plain ms", "ratio", "by round"], rows)
    )


if __name__ == "__main__":
    main()
