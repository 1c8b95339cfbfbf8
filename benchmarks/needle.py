"""Claim C7: numbers read back from a corpus many times longer than the context, one grafted block
each.

    python benchmarks/needle.py OUT_NAME [any option of `taliesin needle`]

Writes benchmarks/results/OUT_NAME.json and .md; a second run uses the blocks of the first. Recorded
so far:

    python benchmarks/needle.py needle_cpu2_smollm2 --model smollm2-135m --threads 2 --memory 1GB
    python benchmarks/needle.py needle_h200_gemma3_270m --model gemma3-270m --gpu-layers -1 --tokens
    2854766 --blocks 88
"""

from __future__ import annotations

import sys
from pathlib import Path

from taliesin.cli import main

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    out = Path(__file__).parent / "results" / sys.argv[1]
    sys.argv = ["taliesin", "needle", *sys.argv[2:], "--out", str(out)]
    main()
