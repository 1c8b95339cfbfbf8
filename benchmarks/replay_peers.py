"""Recorded conversations against `taliesin serve`, a stock llama-server (its defaults, and with
--swa-full) and hearth-llm, each beside its own cold answers.

    python benchmarks/replay_peers.py TRACE smollm2-135m --runs 4 --turns 6 --out FOLDER
    python benchmarks/replay_peers.py TRACE smollm2-135m --out FOLDER --report FILE.json

Each server starts with an empty cache and answers every request once (pass warm), once more with
two and with eight clients at a time (clients-2, clients-8), is started again and answers every
request (restart), and computes every request as a whole (cold, `cache_prompt: false`). The order of
servers is fixed, one at a time; `--max-seconds` stops after the pass that ran then, and the same
call goes on. FOLDER gets a file of rows for each server; without a text.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx

from taliesin.host import console, machine, records
from taliesin.measure import replay
from taliesin.measure.traces import talks
from taliesin.models import resolve as models
from taliesin.server import process as server

N_CTX = 8192
N_THREADS = 2
SERVERS = ("taliesin", "llama-server", "llama-server-swa-full", "hearth-llm")
STARTS = (("warm", 1), ("clients-2", 2), ("clients-8", 8)), (("restart", 1), ("cold", 1))
"""Passes and their clients, of the first and of the second start of a server."""


def _peers() -> ModuleType:
    """`benchmarks/peers.py`, which knows how to start servers of others."""
    spec = importlib.util.spec_from_file_location("peers", Path(__file__).parent / "peers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peers"] = module
    spec.loader.exec_module(module)
    return module


peers = _peers()


@contextlib.contextmanager
def started(name: str, model: Path, cache: Path, venv: Path, ubatch: str) -> Iterator[str]:
    """A server's OpenAI URL; what it keeps lies in `cache`."""
    cache.mkdir(parents=True, exist_ok=True)
    port = peers.free_port()
    url = f"http://127.0.0.1:{port}"
    stock = [
        *("--threads", str(N_THREADS)),
        *(["--swa-full"] if name == "llama-server-swa-full" else []),
    ]
    path = os.environ.get("PATH", "")
    if name == "taliesin":
        run = "import sys; from taliesin.cli import main; main()"
        command = [
            *(sys.executable, "-c", run, "serve", str(model), "--port", str(port)),
            *("--ctx", str(N_CTX), "--ubatch", ubatch, "--cache-folder", str(cache)),
            *("--threads", str(N_THREADS), "--library", str(cache / "library")),
        ]
    elif name == "hearth-llm":
        path = f"{server.find_binary().parent}{os.pathsep}{path}"
        command = [
            *(str(venv / "bin" / "hearth"), "serve", "--model", str(model)),
            *("--port", str(port), "--upstream-port", str(peers.free_port())),
            *("--ctx", str(N_CTX), "--cache-dir", str(cache), "--", *stock),
        ]
    else:
        command = [
            *(str(server.find_binary()), "--model", str(model), "--host", "127.0.0.1"),
            *("--port", str(port), "--ctx-size", str(N_CTX), "--no-ui", "--offline", *stock),
        ]
    with peers.process(command, url, cache / "server.log", path):
        yield f"{url}/v1"


def warmed(url: str, completions: bool) -> None:
    """One short answer that is not counted: pages and threads."""
    body: dict[str, Any] = {"max_tokens": 1}
    if completions:
        httpx.post(f"{url}/completions", json={**body, "prompt": "x"}, timeout=600)
    else:
        messages = [{"role": "user", "content": "x"}]
        httpx.post(f"{url}/chat/completions", json={**body, "messages": messages}, timeout=600)


def play(options: argparse.Namespace, wanted: Sequence[Sequence[replay.Job]]) -> bool:
    """Whether everything is measured; False where the time was up before."""
    until = time.monotonic() + options.max_seconds
    model = models.resolve(options.model)
    total = sum(map(len, wanted))
    for name in options.servers:
        file = options.out / f"{options.model}-{name}.jsonl"
        for passes in STARTS:
            done = Counter(row.label for row in replay.read(file)[0])
            todo = [
                (label, clients)
                for label, clients in passes
                if label in options.passes and done[label] < total
            ]
            if not todo:
                continue
            cache = options.scratch / options.model / name
            with started(name, model, cache, options.venv, options.ubatch) as url:
                warmed(url, options.completions)
                for label, clients in todo:
                    asker = replay.Asker(url, completions=options.completions)
                    left = until - time.monotonic()
                    whole = left > 0 and replay.replay(
                        asker, wanted, label, file, clients=clients, max_seconds=left
                    )
                    asker.close()
                    console.note(f"{options.model} {name} {label}: {'whole' if whole else 'part'}")
                    if not whole:
                        return False
    return True


def report(options: argparse.Namespace) -> dict[str, Any]:
    """What all files of rows say, and the machine."""
    found = []
    for file in sorted(options.out.glob("*.jsonl")):
        rows, parts = replay.read(file)
        model, _, name = next(
            (file.stem.removesuffix(f"-{s}"), "", s)
            for s in sorted(SERVERS, key=len, reverse=True)
            if file.stem.endswith(f"-{s}")
        )
        result = records.plain(replay.report(rows, parts))
        stretches = [records.plain(part) for part in parts]
        found.append({"model": model, "server": name, **result, "stretches": stretches})
    facts = machine.describe() | {"load_average_after": machine.load_average()}
    return {"schema": "taliesin.bench.replay-peers/1", "machine": facts, "results": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("model")
    parser.add_argument("--servers", nargs="+", default=list(SERVERS), choices=SERVERS)
    every = [label for passes in STARTS for label, _ in passes]
    parser.add_argument("--passes", nargs="+", default=every, choices=every)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--turns", type=int)
    parser.add_argument("--completions", action="store_true")
    parser.add_argument("--ubatch", default="auto")
    parser.add_argument("--max-seconds", type=float, default=float("inf"))
    parser.add_argument("--venv", type=Path, help="where hearth-llm is installed")
    parser.add_argument("--scratch", type=Path, help="what servers keep; a temporary folder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.report:
        made = report(options)
        options.report.write_text(json.dumps(made, indent=1) + "\n")
        for result in made["results"]:
            console.out(f"{result['model']}, {result['server']}")
            typed = records.convert(
                {"reference": result["reference"], "passes": result["passes"]},
                replay.ReplayReport,
                what="the report",
            )
            console.out(console.table(replay.HEADERS, replay.table_rows(typed)))
        return
    wanted = replay.jobs(list(talks(options.trace))[: options.runs], options.turns)
    with contextlib.ExitStack() as stack:
        if options.scratch is None:
            options.scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sys.exit(0 if play(options, wanted) else 4)


if __name__ == "__main__":
    main()
