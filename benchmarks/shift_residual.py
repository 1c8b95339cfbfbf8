"""What a moved graft costs on this device, beside its control: `taliesin.prove.shift` on a block of
given token ids, with its recipe.

    python benchmarks/shift_residual.py MODEL --text data/texts/skellan_light.txt --gpu-layers -1
    --out OUT.json

The same ids on CPU and GPU: those of the text under the model's own tokenizer, or seeded ones
(--tokens) without.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from taliesin.engine import llama
from taliesin.engine.embedded import Engine
from taliesin.engine.save import save_tokens
from taliesin.host import machine
from taliesin.prove.shift import shift
from taliesin.store.library import Library

SCHEMA = "taliesin.bench.shift-residual/1"
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument(
        "--tokens",
        type=int,
        default=748,
        help="length of the seeded block; of the text, at most this",
    )
    parser.add_argument("--by", nargs="+", type=int, default=[1, 16, 256])
    parser.add_argument("--queries", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--gpu-layers", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    settings = llama.Settings(n_threads=options.threads)
    with (
        tempfile.TemporaryDirectory() as folder,
        Library(Path(folder) / "library") as library,
        Engine(str(options.model), settings=settings, gpu_layers=options.gpu_layers) as engine,
    ):
        if options.text is not None:
            tokens = engine.model.tokenize(options.text.read_text(encoding="utf-8"), special=False)[
                : options.tokens
            ]
        else:
            rng = np.random.default_rng([SEED, options.tokens])
            tokens = rng.integers(10, engine.model.n_vocab, options.tokens).tolist()
        block_id = save_tokens(engine, library, tokens, "block", align="whole").info.id
        with library.open(block_id) as block:
            found = shift(engine, block, tuple(options.by), options.queries)
            recipe = dict(block.header.recipe)
    document = {
        "schema": SCHEMA,
        "machine": machine.describe(),
        "n_tokens": len(tokens),
        "text": options.text.name if options.text else None,
        "recipe": recipe,
        "shifts": [s.as_dict() | {"statement": s.statement} for s in found],
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    for s in found:
        print(s.statement)


if __name__ == "__main__":
    main()
