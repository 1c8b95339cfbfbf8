"""Claim C19: old LiveBench questions as a library, newer ones as the test.

    python benchmarks/livebench.py zebra_puzzle.jsonl math_comp.jsonl web_of_lies_v2.jsonl --model
    qwen2.5-coder-0.5b

The files are the user's own copies; no text of a question or an answer enters
benchmarks/results/livebench_MODEL.json, which holds ids,
verdicts, tokens, seconds and the hashes of questions and blocks. It is written after every
question: the same command goes on where an earlier one stopped, `--minutes` stops one, and a larger
`--sample` holds a smaller one. Newer questions exist of the zebra puzzles alone, so a sample of N
is N questions of transfer and N of replay for each of three tasks, 4 N in all.

Estimated for 2 cores that do nothing else, at 224 output tokens, both arms: 18 s a question with
the 0.5B model and 50 s with the 1.5B, and 15 s and 45 s for the blocks at each start. The default
sample so takes 3 and 8 minutes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DATE = "2024-11-25"  # of the newest public release of the three tasks


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--model", required=True)
    parser.add_argument("--library-before", default=DATE)
    parser.add_argument("--sample", type=int, default=2)
    parser.add_argument("--examples", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=224)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--minutes", type=float)
    options = parser.parse_args()
    command = [sys.executable, "-m", "galahad", "livebench", *map(str, options.files)]
    for name in ("model", "library_before", "sample", "examples", "tokens", "seed", "threads"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    if options.minutes is not None:
        command += ["--max-seconds", str(60 * options.minutes)]
    out = RESULTS / f"livebench_{Path(options.model).name.removesuffix('.gguf')}.json"
    return subprocess.run([*command, "--out", str(out)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
