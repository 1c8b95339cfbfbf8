"""Claim C8: a base run, with confidence against grades. Solves a suite, then keeps the log and the
report.

    python benchmarks/solve.py data/problems own
    python benchmarks/solve.py aime2025.jsonl aime2025 --minutes 20

The first argument is a problem file, the second a name. Works in build/solve/NAME and goes on where
an earlier call stopped; `--minutes` ends a call after the attempt in hand. Writes
benchmarks/results/solve/NAME/run.jsonl, which holds no text of a problem or of a model, report.md
beside it, and the figures as benchmarks/results/solve_NAME.json. Estimated at 45 minutes for our 48
problems and 30 of an AIME year, on 2 cores that do nothing else.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from galahad.solve import log as runlog
from galahad.solve import summary as report
from galahad.solve.markdown import markdown
from taliesin.host import console

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MODEL = "qwen2.5-coder-1.5b"
# For 2 cores, on which this model decodes 14 tokens a second: about half a minute a problem.
BUDGET = 448
TIMEOUT = 30  # seconds for a program instead of 10, because the machine may be busy


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problems", type=Path)
    parser.add_argument("name")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument(
        "--budget",
        type=int,
        default=BUDGET,
        help="output tokens of an attempt; a pass may take 5/7 of them",
    )
    parser.add_argument("--minutes", type=float)
    arguments = parser.parse_args()
    work = ROOT / "build" / "solve" / arguments.name
    resume = ["--resume"] if (work / runlog.LOG).exists() else []
    command = [
        sys.executable,
        "-m",
        "galahad",
        "solve",
        str(arguments.problems),
        "--out",
        str(work),
    ]
    one_pass, check = arguments.budget * 5 // 7, arguments.budget * 3 // 14
    limits = {
        "budget": arguments.budget,
        "thought-tokens": one_pass,
        "program-tokens": one_pass,
        "check-tokens": check,
        "timeout": TIMEOUT,
    }
    options = [part for name, value in limits.items() for part in (f"--{name}", str(value))]
    process = subprocess.Popen([*command, "--model", arguments.model, *options, *resume])
    if arguments.minutes is not None:
        timer = threading.Timer(60 * arguments.minutes, process.send_signal, [signal.SIGINT])
        timer.daemon = True
        timer.start()
    code = process.wait()
    if not (work / runlog.LOG).exists():
        return code
    target = RESULTS / "solve" / arguments.name
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(work / runlog.LOG, target / runlog.LOG)
    summary = report.summarise(runlog.read(work))
    (target / "report.md").write_text(markdown(summary) + "\n", encoding="utf-8")
    figures = {
        "schema": "galahad.report/1",
        "run": f"{arguments.name}, {arguments.model}",
        **summary.as_dict(),
    }
    (RESULTS / f"solve_{arguments.name}.json").write_text(
        console.json_line(figures) + "\n", encoding="utf-8"
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
