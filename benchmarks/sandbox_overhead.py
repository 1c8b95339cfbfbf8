"""What a sandboxed start costs over a bare interpreter (claim: at most 60 ms more at the median).

    python benchmarks/sandbox_overhead.py [--rounds N] [--out FILE]

Each round runs `print(204)` once in every arm, in a new random order, so that load on the machine
falls on all arms alike. `bare` is `subprocess.run` of the same interpreter with -I -S: the quickest
start there is, so the comparison is the hardest for us (`with_site` is the usual start, which
depends on what is installed). The other arms are `sandbox.run` at each level that this host has,
pipes, private folder and clean-up included. The first rounds are not counted. Every single time is
in the JSON file. On a shared machine, run it under real-time priority (`chrt -f 50`): otherwise it
measures the neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from galahad import sandbox
from galahad.sandbox.readable import readable

_BUDGET_MS = 60.0
_N_WARM_UP = 3
_PROGRAM = "print(204)\n"


def _bare(flags: list[str], program: Path) -> Callable[[], None]:
    command = [readable().executable, *flags, str(program)]

    def start() -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == "204\n"

    return start


def _sandboxed(mechanisms: sandbox.Mechanisms) -> Callable[[], None]:
    def start() -> None:
        assert sandbox.run(_PROGRAM, mechanisms=mechanisms, allow_weak=True).stdout == "204\n"

    return start


def _arms(program: Path) -> dict[str, Callable[[], None]]:
    arms = {"bare": _bare(["-I", "-S"], program), "with_site": _bare([], program)}
    for use_bubblewrap in (False, True):
        found = sandbox.probe(use_bubblewrap=use_bubblewrap)
        arms[found.level] = _sandboxed(found.mechanisms)
    arms.setdefault("weak", _sandboxed(sandbox.Mechanisms()))
    return arms


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).with_name("results") / "sandbox_overhead.json"
    )
    options = parser.parse_args()
    order = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(_PROGRAM)
        arms = _arms(program)
        times: dict[str, list[float]] = {name: [] for name in arms}
        for round_number in range(_N_WARM_UP + options.rounds):
            for name in order.sample(list(arms), len(arms)):
                started = time.perf_counter()
                arms[name]()
                if round_number >= _N_WARM_UP:
                    times[name].append(1000 * (time.perf_counter() - started))
    medians = {name: statistics.median(values) for name, values in times.items()}
    over_bare = {
        name: median - medians["bare"]
        for name, median in medians.items()
        if name not in ("bare", "with_site")
    }
    found = sandbox.probe()
    result = {
        "schema": "galahad.benchmark.sandbox_overhead/1",
        "budget_ms": _BUDGET_MS,
        "median_ms": medians,
        "over_bare_ms": over_bare,
        "ratio_to_bare": {name: median / medians["bare"] for name, median in medians.items()},
        "within_budget": all(over_bare[name] <= _BUDGET_MS for name in over_bare),
        "times_ms": times,
        "rounds": options.rounds,
        "seed": options.seed,
        "load_average": os.getloadavg(),
        "scheduler": {os.SCHED_OTHER: "other", os.SCHED_FIFO: "fifo", os.SCHED_RR: "rr"}.get(
            os.sched_getscheduler(0), "?"
        ),
        "n_cpus": os.cpu_count(),
        "kernel": found.kernel,
        "machine": found.machine,
        "python": platform.python_version(),
        "mechanisms": found.mechanisms.names(),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, median in medians.items():
        spread = statistics.quantiles(times[name], n=10)
        more = f"  {over_bare[name]:+6.1f} ms over bare" if name in over_bare else ""
        print(
            f"{name:9} median {median:6.1f} ms  (10-90 %: {spread[0]:.1f} to "
            f"{spread[-1]:.1f}){more}"
        )
    return 0 if result["within_budget"] else 3


if __name__ == "__main__":
    sys.exit(main())
