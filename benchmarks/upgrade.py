"""Claim C22: a library after an upgrade, proved and rebuilt by `taliesin rebuild` with a real
model.

    python benchmarks/upgrade.py --model gemma3-270m python benchmarks/upgrade.py --model
    qwen2.5-coder-1.5b --gpu-layers -1 --out benchmarks/results/gpu/upgrade.json

Four blocks of seeded prose, computed on the CPU. Then four runs of the command, each in a process
of its own: as it is (all verified), after a changed setting (all rebuilt, `--thorough`: each also
by `taliesin verify` in two processes), once more (all verified), and once more after one block's
payload was damaged (that one rebuilt from its token ids). The setting is the number of tokens a
batch holds, or with --gpu-layers the device. OUT holds what each run printed. Exit code 3 if a run
said anything else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from taliesin.engine import llama
from taliesin.engine.embedded import Engine
from taliesin.engine.save import save
from taliesin.errors import EXIT_NO
from taliesin.host import console, machine
from taliesin.measure import corpus
from taliesin.models import catalogue
from taliesin.models import resolve as models
from taliesin.store.library import Library

ROOT = Path(__file__).parent.parent
SCHEMA = "taliesin.bench.upgrade/1"


def rebuild(library: Path, *options: object) -> dict[str, Any]:
    """What `taliesin rebuild` printed, and its exit code."""
    command = [
        sys.executable,
        "-m",
        "taliesin",
        "rebuild",
        "--library",
        library,
        *options,
        "--json",
    ]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
    found = json.loads(done.stdout or "{}")
    del found["library"]  # a path of this machine
    return {"options": list(map(str, options)), "exit_code": done.returncode, **found}


def damage(library: Path, name: str) -> None:
    """Turn one bit in the middle of the block's payload."""
    with Library(library) as store, store.open(name) as block:
        path = block.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(0o400)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--sentences",
        type=int,
        nargs="+",
        default=[10, 25, 45, 70],
        help="of each block; about 20 tokens each",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--gpu-layers", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = models.resolve(options.model)
    change = ["--gpu-layers", options.gpu_layers] if options.gpu_layers else ["--ubatch", 256]
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "library"
        with (
            Engine(str(model), llama.Settings(n_threads=options.threads)) as engine,
            Library(library) as store,
        ):
            for i, n_sentences in enumerate(options.sentences):
                save(engine, store, corpus.passage(0, i, n_sentences), f"text {i}")
        also = ["--model", model] if catalogue.find(options.model) is None else []
        runs = [
            rebuild(library, *also),
            rebuild(library, *also, *change, "--thorough"),
            rebuild(library, *also),
        ]
        damage(library, "text 0")
        runs.append(rebuild(library, *also))
    for run in runs:
        run["options"] = [option for option in run["options"] if option not in map(str, also)]
    document = {"schema": SCHEMA, "machine": machine.describe(), "model": model.stem, "runs": runs}
    text = json.dumps(document, indent=1) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    console.out(text)
    n = len(options.sentences)
    said = [[block["status"] for block in run["blocks"]] for run in runs]
    expected = [
        ["verified"] * n,
        ["rebuilt"] * n,
        ["verified"] * n,
        ["rebuilt"] + ["verified"] * (n - 1),
    ]
    sys.exit(0 if [sorted(one) for one in said] == expected else EXIT_NO)


if __name__ == "__main__":
    main()
