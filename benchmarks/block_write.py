"""What a block file costs over plain bytes: writing against write + fsync, reading verified against
reading and copying.

    python benchmarks/block_write.py --out benchmarks/results/block_write.json

Each round times, in turn and on the same folder: a plain write and fsync of as many bytes;
`blockfile.write` (two SHA-256 passes, fsync, read back); `BlockFile.read_into` without and with
verification (page cache warm: the file was just written); a plain memory copy of the payload. The
target is writing within twice the plain write. Every timing is in the result; the script reports,
it does not judge.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from taliesin import __version__
from taliesin.store import blockfile
from taliesin.store.blockfile import BlockFile
from taliesin.store.header import BlockHeader

SIZES_MB = (14, 47, 294)  # Gemma-3-270M and SmolLM2-135M at 2,048 tokens, a 12B model at 748


def seconds_of(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def one_round(folder: Path, payload: np.ndarray, destination: np.ndarray) -> dict[str, float]:
    header = BlockHeader(
        title="benchmark",
        created="2026-01-31T12:00:00Z",
        recipe={"n_ubatch": 512},
        equals="one-shot",
        tokens=np.arange(2048, dtype=np.int32),
        tail=np.zeros(0, np.int32),
    )
    plain, block = folder / "plain", folder / "block.kvb"

    def write_plain() -> None:
        with plain.open("wb", buffering=0) as file:
            view = memoryview(payload)
            while view.nbytes:
                view = view[file.write(view) :]
            os.fsync(file.fileno())

    def write_block() -> None:
        fd = os.open(block, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        blockfile.write(fd, header, payload)
        os.close(fd)

    times = {"plain_write": seconds_of(write_plain)}
    plain.unlink()
    times["block_write"] = seconds_of(write_block)
    with BlockFile.open(block) as opened:
        pieces = [(0, memoryview(destination))]
        times["read"] = seconds_of(lambda: opened.read_into(pieces, verify=False))
        times["read_verified"] = seconds_of(lambda: opened.read_into(pieces, verify=True))
    times["memory_copy"] = seconds_of(lambda: np.copyto(destination, payload))
    block.unlink()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--folder", type=Path, help="where to write; the system's temporary folder if not given"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = []
    for size_mb in SIZES_MB:
        payload = np.frombuffer(np.random.default_rng(0).bytes(size_mb * 1_000_000), np.uint8)
        destination = np.zeros_like(payload)
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            one_round(Path(folder), payload, destination)  # warm-up, not counted
            rounds = [one_round(Path(folder), payload, destination) for _ in range(options.rounds)]
        medians = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
        ratio = medians["block_write"] / medians["plain_write"]
        ratios = sorted(r["block_write"] / r["plain_write"] for r in rounds)
        results.append(
            {
                "payload_bytes": len(payload),
                "rounds_seconds": rounds,
                "median_seconds": medians,
                "write_ratio": ratio,
            }
        )
        print(
            f"{size_mb:4} MB  write {medians['plain_write']:.3f} s plain, "
            f"{medians['block_write']:.3f} s block "
            f"({ratio:.2f}x of medians, {ratios[0]:.2f} to {ratios[-1]:.2f} by round)  "
            f"read {medians['read']:.3f} s, verified {medians['read_verified']:.3f} s, copy "
            f"{medians['memory_copy']:.3f} s"
        )
    report = {
        "schema": "taliesin.bench.block-write/1",
        "version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "results": results,
    }
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
