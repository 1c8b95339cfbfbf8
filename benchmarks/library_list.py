"""How long the commands take that must feel immediate: `taliesin --help`, and `taliesin list` over
many blocks.

    python benchmarks/library_list.py --blocks 10000 --runs 10 --out
    benchmarks/results/library_list.json

Fills a library in a temporary folder (tiny blocks, through `Library.put`, with fsync switched off:
filling is not what is measured), then times whole processes with their output read through a pipe.
Every timing is in the result. The targets are 0.25 s for `--help` and 0.5 s for `list`; the script
reports, it does not judge. Processor time stands beside the clock's, because the latter says little
on a machine that has other things to do.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import numpy as np

from taliesin import __version__
from taliesin.store.header import BlockHeader
from taliesin.store.library import Library


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


def time_command(arguments: list[str], runs: int, environment: dict[str, str]) -> dict[str, object]:
    seconds, cpu_seconds = [], []
    n_bytes = 0
    for _ in range(runs):
        command = [sys.executable, "-m", "taliesin", "--quiet", *arguments]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
        seconds.append(time.perf_counter() - begin)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        n_bytes = len(done.stdout)
    return {
        "command": ["taliesin", *(a for a in arguments if not a.startswith("--library="))],
        "runs_seconds": seconds,
        "runs_cpu_seconds": cpu_seconds,
        "median_seconds": statistics.median(seconds),
        "min_seconds": min(seconds),
        "max_seconds": max(seconds),
        "median_cpu_seconds": statistics.median(cpu_seconds),
        "output_bytes": n_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library"
        fill_seconds = fill(path, options.blocks)
        at = f"--library={path}"
        # Bytecode is kept, as in an installation; the first run, which writes it, is not counted.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
        time_command(["list", at, "--json"], 1, environment)
        for cached in path.glob("index.sqlite3*"):
            cached.unlink()
        results = {
            "help": time_command(["--help"], options.runs, environment),
            "list_without_index": time_command(["list", at], 1, environment),
            "list": time_command(["list", at], options.runs, environment),
            "list_names": time_command(["list", "--names", at], options.runs, environment),
            "list_json": time_command(["list", "--json", at], options.runs, environment),
        }
    report = {
        "schema": "taliesin.bench.library-list/1",
        "version": __version__,
        "python": platform.python_version(),
        "typer": metadata.version("typer"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "blocks": options.blocks,
        "fill_seconds": fill_seconds,
        "results": results,
    }
    text = json.dumps(report, indent=1) + "\n"
    if options.out:
        options.out.write_text(text)
    for name, result in results.items():
        low, median, high, cpu = (
            result[f"{which}_seconds"] for which in ("min", "median", "max", "median_cpu")
        )
        print(f"{name:20} median {median:.3f} s  ({low:.3f} to {high:.3f})  processor {cpu:.3f} s")


if __name__ == "__main__":
    main()
