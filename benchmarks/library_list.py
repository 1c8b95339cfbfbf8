"""How long the commands take that must feel immediate: `taliesin --help`, and `taliesin list` over many blocks.

    python benchmarks/library_list.py --blocks 10000 --runs 10 --output benchmarks/results/library_list.json

Fills a library in a temporary folder (tiny blocks, through `Library.put`, with fsync switched off: filling is not what is
measured), then times whole processes with their output read through a pipe. Every timing is in the result. The targets are
0.25 s for `--help` and 0.5 s for `list`; the script reports, it does not judge.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from taliesin import __version__
from taliesin.blockfile import BlockHeader
from taliesin.library import Library


def fill(path: Path, n_blocks: int) -> float:
    """Seconds that storing `n_blocks` blocks of 256 tokens and 64 KiB took."""
    os.fsync = lambda _fd: None  # type: ignore[assignment]
    rng = np.random.default_rng(0)
    begin = time.perf_counter()
    with Library(path) as library:
        for i in range(n_blocks):
            header = BlockHeader(
                title=f"Chapter {i}",
                created="2026-01-31T12:00:00Z",
                recipe={"model": "a" * 64, "n_ubatch": 512, "flash_attention": True},
                equals="one-shot",
                tokens=rng.integers(0, 32000, 256, dtype=np.int32),
                tail=np.zeros(0, np.int32),
                text="It was a dark and stormy night. " * 8,
            )
            library.put(f"chapter {i:05d}", header, rng.bytes(1 << 16))
    return time.perf_counter() - begin


def time_command(arguments: list[str], runs: int) -> dict[str, object]:
    seconds = []
    n_bytes = 0
    for _ in range(runs):
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "taliesin", *arguments], stdout=subprocess.PIPE, check=True)
        seconds.append(time.perf_counter() - begin)
        n_bytes = len(done.stdout)
    return {
        "command": ["taliesin", *(a for a in arguments if not a.startswith("--library="))],
        "runs_seconds": seconds,
        "median_seconds": statistics.median(seconds),
        "min_seconds": min(seconds),
        "max_seconds": max(seconds),
        "output_bytes": n_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library"
        fill_seconds = fill(path, options.blocks)
        at = f"--library={path}"
        results = {
            "help": time_command(["--help"], options.runs),
            "list_without_index": time_command(["list", at], 1),
            "list": time_command(["list", at], options.runs),
            "list_names": time_command(["list", "--names", at], options.runs),
            "list_json": time_command(["list", "--json", at], options.runs),
        }
    report = {
        "schema": "taliesin.bench.library-list/1",
        "version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "blocks": options.blocks,
        "fill_seconds": fill_seconds,
        "results": results,
    }
    text = json.dumps(report, indent=1) + "\n"
    if options.output:
        options.output.write_text(text)
    for name, result in results.items():
        low, median, high = (result[f"{which}_seconds"] for which in ("min", "median", "max"))
        print(f"{name:20} median {median:.3f} s  ({low:.3f} to {high:.3f}, {len(result['runs_seconds'])} runs)")  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
