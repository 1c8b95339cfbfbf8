"""Peak memory of a process that grafts a block, beyond the model and its context.

    python benchmarks/graft_memory.py --out benchmarks/results/graft_memory.json

Two kinds of processes in turn, each a new one. *Baseline*: load the model, make the context that
the graft would use, decode a query. *Graft*: the same, with the block grafted before the query. The
peak is the kernel's high-water mark of the resident set (VmHWM, so Linux only; ru_maxrss would
count the parent of the process as well). The target for the difference is 1.3 times the block's
stored bytes. Every peak is in the result; the script reports, it does not judge.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from taliesin.engine import llama
from taliesin.engine.embedded import Engine, settings_of
from taliesin.engine.save import save_tokens
from taliesin.host import console, machine
from taliesin.models import resolve as models
from taliesin.store.library import Library

_ROOM = 64
_QUERY = list(range(100, 107))


def child(kind: str, model: str, library_path: str) -> None:
    """One measured process: prints its peak in bytes."""
    with (
        Library(Path(library_path), create=False) as library,
        Engine(model) as engine,
        library.open("block") as block,
    ):
        n_tokens = len(block.header.tokens)
        if kind == "graft":
            grafted = engine.graft(block, library=library, policy="always", n_extra=_ROOM)
            grafted.prefill(_QUERY)
        else:
            settings = settings_of(block.header.recipe, block.path, {})
            context = engine.context(settings, n_tokens + _ROOM)
            engine.recipe(context)
            context.decode(_QUERY, 0)
        status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    console.out(str(int(peak.split()[1]) * 1024))


def peak_bytes(kind: str, model: Path, library: Path) -> int:
    command = [sys.executable, __file__, "--child", kind, str(model), str(library)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def measure(name: str, n_tokens: int, rounds: int) -> dict[str, Any]:
    model = models.resolve(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library"
        with Library(path) as library, Engine(str(model), settings=llama.Settings()) as engine:
            tokens = np.random.default_rng(0).integers(10, engine.model.n_vocab, n_tokens).tolist()
            info = save_tokens(engine, library, tokens, "block", align="whole").info
            model_sha256 = engine.model_sha256
        samples = [
            {kind: peak_bytes(kind, model, path) for kind in ("baseline", "graft")}
            for _ in range(rounds)
        ]
    medians = {kind: statistics.median(s[kind] for s in samples) for kind in ("baseline", "graft")}
    extra = medians["graft"] - medians["baseline"]
    return {
        "model": name,
        "model_sha256": model_sha256,
        "n_tokens": n_tokens,
        "block_bytes": info.payload_bytes,
        "peak_bytes_by_round": samples,
        "median_peak_bytes": medians,
        "extra_bytes": extra,
        "extra_by_block": extra / info.payload_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["smollm2-135m", "gemma3-270m"])
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--child", nargs=3, metavar=("KIND", "MODEL", "LIBRARY"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    facts = machine.describe()
    results = [measure(name, options.tokens, options.rounds) for name in options.models]
    report = {
        "schema": "taliesin.bench.graft-memory/1",
        "machine": facts | {"load_average_after": machine.load_average()},
        "results": results,
    }
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    rows = [
        (
            found["model"],
            found["n_tokens"],
            f"{found['block_bytes'] / 1e6:.1f}",
            *(f"{found['median_peak_bytes'][kind] / 1e6:.1f}" for kind in ("baseline", "graft")),
            f"{found['extra_bytes'] / 1e6:.1f}",
            f"{found['extra_by_block']:.2f}",
        )
        for found in results
    ]
    headers = [
        "model",
        "tokens",
        "block MB",
        "peak without MB",
        "peak with graft MB",
        "extra MB",
        "extra / block",
    ]
    console.out(console.table(headers, rows))


if __name__ == "__main__":
    main()
