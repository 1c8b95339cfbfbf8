"""Claims C4 and C5: fresh prefill against graft, from disk, memory and resident.

    python benchmarks/bench.py OUT_NAME [any option of `taliesin bench`]

Writes benchmarks/results/OUT_NAME.json, .md and .png. Recorded so far, on quiet machines (the load
average is in the JSON):

    python benchmarks/bench.py bench_cpu2_gemma3_270m --model gemma3-270m --threads 2 --lengths
    748,2048
    python benchmarks/synthesise.py gemma3-12b m12.gguf       # the 12B shape with random weights:
                                                              12.5 GB
    python benchmarks/bench.py bench_h200_gemma3_12b_f16 --model m12.gguf --gpu-layers -1 --small 32
    python benchmarks/bench.py bench_h200_gemma3_12b_q8 --model m12.gguf --gpu-layers -1 --small 32
    \
        --repeats 3 --type-k q8_0 --type-v q8_0
"""

from __future__ import annotations

import sys
from pathlib import Path

from taliesin.cli import main

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    out = Path(__file__).parent / "results" / sys.argv[1]
    sys.argv = ["taliesin", "bench", *sys.argv[2:], "--out", str(out)]
    main()
