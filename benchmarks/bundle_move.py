"""Claim C18: blocks packed on one machine, proved on another.

    python benchmarks/bundle_move.py pack FOLDER                 # on the first machine
    python benchmarks/bundle_move.py prove FOLDER --out FILE     # on the second one, with the
                                                                 folder carried there

Eight blocks of seeded ids, four lengths on each of two models with window layers. The models are
random weights, written by `synthesise.py` on either machine with the same bytes, so that only the
bundle has to travel; `--model NAME` packs four blocks of
a real one as well. `prove` is `taliesin import`: it re-runs each block's certificate, whose digests
of the logits are the first machine's, so "exact here" means equal bits on two machines. Exit code 3
if a block is not exact here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from synthesise import SHAPES, write

from taliesin.engine import llama
from taliesin.engine.embedded import Engine
from taliesin.engine.save import save_tokens
from taliesin.host import console, machine
from taliesin.models import resolve as models
from taliesin.store.library import Library

SCHEMA = "taliesin.bench.bundle-move/1"
SYNTHETIC = ("gemma3-tiny", "gemma4-tiny-shared")
LENGTHS = (64, 300, 1024, 1500)
BUNDLE = "blocks.tar"
PACKED = "packed.json"


def model_path(name: str, folder: Path) -> Path:
    return (
        write(folder / f"{name}.gguf", SHAPES[name]) if name in SYNTHETIC else models.resolve(name)
    )


def taliesin(*arguments: object) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "taliesin", *map(str, arguments), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, json.loads(done.stdout or "{}")


def pack(folder: Path, names: list[str]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = model_path(name, folder)
        with (
            Engine(str(path), llama.Settings(n_threads=2)) as engine,
            Library(folder / f"{name}.library") as library,
        ):
            for n_tokens in LENGTHS:
                tokens = (
                    np.random.default_rng(n_tokens)
                    .integers(10, engine.model.n_vocab, n_tokens)
                    .tolist()
                )
                save_tokens(engine, library, tokens, f"{n_tokens}", align="whole")
        code, _ = taliesin(
            "export",
            "--all",
            "-o",
            folder / f"{name}.{BUNDLE}",
            "--library",
            folder / f"{name}.library",
        )
        if code:
            return code
    (folder / PACKED).write_text(json.dumps(machine.describe(), indent=1) + "\n", encoding="utf-8")
    return 0


def prove(folder: Path, out: Path) -> int:
    rows: list[dict[str, Any]] = []
    worst = 0
    for bundle in sorted(folder.glob(f"*.{BUNDLE}")):
        name = bundle.name.removesuffix(f".{BUNDLE}")
        library = folder / f"{name}.proved"
        code, found = taliesin(
            "import", bundle, "--library", library, "--model", model_path(name, folder), "--yes"
        )
        worst = max(worst, code)
        rows.append({"model": name, "exit_code": code, "proofs": found.get("proofs", [])})
        for proof in rows[-1]["proofs"]:
            console.out(f"{name} {proof['name']}: {proof['statement']}")
    document = {
        "schema": SCHEMA,
        "packed_on": json.loads((folder / PACKED).read_text(encoding="utf-8")),
        "proved_on": machine.describe(),
        "rows": rows,
    }
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("pack", "prove"))
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="a real model besides"
    )
    parser.add_argument("--out", type=Path, help="of prove")
    given = parser.parse_args()
    if given.verb == "pack":
        return pack(given.folder.resolve(), [*SYNTHETIC, *given.model])
    if given.out is None:
        parser.error("prove needs --out")
    return prove(given.folder.resolve(), given.out)


if __name__ == "__main__":
    sys.exit(main())
