"""What a llama-server makes of a restored slot, for each configuration: reused or not, and equal to
what.

    python benchmarks/server_table.py gemma3-270m 1024,1500,1700,2048 --out
    benchmarks/results/server-gemma3-270m.json python benchmarks/server_table.py table
    benchmarks/results/server-*.json

For each configuration and length, in one server: the block, then block and query ("live"); erased;
both in one request ("one-shot"). The slot is saved after the block. Another server process restores
the file and is asked the same, after a decoy. Then 60 seconds of two clients on four slots, with
turns (as `taliesin.server.slots` gives them) and without. Needs `make server`.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from taliesin.engine import llama
from taliesin.errors import ServerError
from taliesin.host import filehash, machine
from taliesin.models import resolve as models
from taliesin.server import process as server
from taliesin.server.client import N_PROBS, Client, Completion
from taliesin.server.options import COMMIT, Options
from taliesin.server.slots import Slots
from taliesin.state import placement, slotfile

STEPS = 16
N_QUERY = 7
N_OTHER = 300  # tokens in the second slot of configurations that have one


@dataclass(frozen=True)
class Configuration:
    """Options of the server, what file is restored, and what stands in another slot meanwhile."""

    name: str
    options: Options
    files: tuple[str, ...] = ("own",)
    other_slot: bool = False
    arguments: tuple[str, ...] = ()
    pinned: bool = True


def configurations(base: Options, windowed: bool) -> list[Configuration]:
    ours = ("own", "laid out", "laid out, head at 0") if windowed else ("own",)
    stock = replace(base, cache_ram_mib=8192, slot_prompt_similarity=0.1, ctx_checkpoints=32)
    found = [
        Configuration("1 slot", base, ours),
        Configuration("4 slots", replace(base, n_slots=4), ours[:2], other_slot=True),
        Configuration(
            "4 slots, unpinned request",
            replace(base, n_slots=4),
            ours[-2:][:1],
            other_slot=True,
            pinned=False,
        ),
        Configuration(
            "2 slots, unified", replace(base, n_slots=2, kv_unified=True), ours[:2], other_slot=True
        ),
        Configuration("stock defaults, 1 slot", stock, ours[:2]),
    ]
    if windowed:
        found.append(Configuration("1 slot, --swa-full", replace(base, swa_full=True), ours[:2]))
    return found


def ids(n: int, seed: int, n_vocab: int, bos: int) -> list[int]:
    rng = random.Random(seed)
    return [
        bos,
        *(
            rng.randrange(1000 if n_vocab > 5000 else 261, min(n_vocab, 30_000))
            for _ in range(n - 1)
        ),
    ]


def same(a: Completion, b: Completion) -> dict[str, int]:
    return {
        "tokens": sum(x == y for x, y in zip(a.tokens, b.tokens, strict=False)),
        "logprobs": sum(x == y for x, y in zip(a.logprobs, b.logprobs, strict=False)),
    }


def ask(client: Client, tokens: Sequence[int], slot: int) -> Completion:
    return client.complete(tokens, STEPS, slot, n_probs=N_PROBS, ignore_eos=True)


def image_of(
    kind: str, own: slotfile.SlotFile, window: int, ring: int, n_stream: int
) -> memoryview:
    if kind == "own":
        return own.data
    image = slotfile.lay_out(
        memoryview(b"".join(own.payload())), own.tokens, window, ring, n_stream
    )
    if kind == "laid out, head at 0":
        # Without the position that says where the write head belongs: the oldest one is back in its
        # cell.
        n = len(own.tokens)
        laid = slotfile.parse(image, own.path)
        for index, position in enumerate(laid.parts[1].positions):
            if position == n:
                image = memoryview(bytearray(image))
                struct.pack_into("<i", image, laid.parts[1].offset + 4 + 12 * index, n - ring)
    return image


def measure(
    config: Configuration, model: Path, vocab: llama.Model, lengths: Sequence[int]
) -> list[dict[str, Any]]:
    options = config.options
    n_seq_max = options.n_slots if options.kv_unified else 1
    ring = (
        options.n_ctx
        if options.swa_full
        else placement.ring_cells(vocab.window, options.n_ubatch, n_seq_max, options.n_ctx)
    )
    kept: dict[int, tuple[bytes, Completion, Completion, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        made = server.launch(model, options, Path(folder), arguments=config.arguments)
        try:
            for n in lengths:
                block, query = (
                    ids(n, n, vocab.n_vocab, vocab.bos),
                    ids(N_QUERY + 1, n + 1, vocab.n_vocab, 0)[1:],
                )
                made.client.erase_slot(0)
                made.client.complete(block, 0, 0)
                made.client.save_slot(0, "a")
                data = (made.slot_folder / "a").read_bytes()
                live = ask(made.client, [*block, *query], 0)
                made.client.erase_slot(0)
                began = time.perf_counter()
                one_shot = ask(made.client, [*block, *query], 0)
                kept[n] = (
                    data,
                    live,
                    one_shot,
                    time.perf_counter() - began - one_shot.predict_seconds,
                )
        finally:
            made.stop()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        made = server.launch(model, options, Path(folder), arguments=config.arguments)
        try:
            if config.other_slot:
                made.client.complete(ids(N_OTHER, 5, vocab.n_vocab, vocab.bos), 4, 1)
            for n in lengths:
                data, live, one_shot, fresh_seconds = kept[n]
                block, query = (
                    ids(n, n, vocab.n_vocab, vocab.bos),
                    ids(N_QUERY + 1, n + 1, vocab.n_vocab, 0)[1:],
                )
                own = slotfile.parse(memoryview(data), Path("a"))
                for kind in config.files:
                    made.client.complete(ids(200, 9, vocab.n_vocab, vocab.bos), 1, 0)  # the decoy
                    slotfile.write(
                        made.slot_folder / "b",
                        image_of(kind, own, vocab.window, ring, options.n_stream()),
                    )
                    began = time.perf_counter()
                    try:
                        made.client.restore_slot(0, "b")
                    # a shared cache with other slots in it has no room for a whole ring
                    except ServerError as error:
                        rows.append(
                            {
                                "configuration": config.name,
                                "file": kind,
                                "n": n,
                                "refused": str(error.got),
                            }
                        )
                        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                        continue
                    got = ask(made.client, [*block, *query], 0 if config.pinned else -1)
                    seconds = time.perf_counter() - began - got.predict_seconds
                    row = {
                        "configuration": config.name,
                        "file": kind,
                        "n": n,
                        "reused": got.cache_n,
                        "evaluated": got.prompt_n,
                        "of": STEPS,
                        "live": same(got, live),
                        "one_shot": same(got, one_shot),
                        "live_is_one_shot": same(live, one_shot),
                        "fresh_seconds": fresh_seconds,
                        "seconds": seconds,
                        "mode": "pinned" if config.pinned else "unpinned",
                        "exact_options": not options.inexact(),
                    }
                    rows.append(row)
                    print(json.dumps(row), file=sys.stderr, flush=True)
        finally:
            made.stop()
    return rows


def two_clients(
    base: Options, model: Path, vocab: llama.Model, turns: bool, seconds: float
) -> dict[str, Any]:
    """Two clients, four slots, four blocks of 700 to 1000 tokens: how many answers equal those of
    one client.
    """
    options = replace(base, n_slots=4)
    ring = placement.ring_cells(vocab.window, options.n_ubatch, 1, options.n_ctx)
    blocks = [ids(700 + 100 * b, 20 + b, vocab.n_vocab, vocab.bos) for b in range(4)]
    asked = [ids(6, 40 + q, vocab.n_vocab, 0)[1:] for q in range(3)]
    counts = {"equal": 0, "other_logprobs": 0, "other_tokens": 0, "not_reused": 0}
    with tempfile.TemporaryDirectory() as folder:
        made = server.launch(model, options, Path(folder))
        try:
            fresh = {}
            for b, block in enumerate(blocks):
                made.client.complete(block, 0, b)
                made.client.save_slot(b, f"{b:x}")
                own = slotfile.read(made.slot_folder / f"{b:x}")
                for q, query in enumerate(asked):
                    made.client.erase_slot(b)
                    made.client.complete(block, 0, b)
                    fresh[b, q] = ask(made.client, [*block, *query], b)
                image = image_of("laid out" if vocab.window else "own", own, vocab.window, ring, 4)
                slotfile.write(made.slot_folder / f"{b:x}", image)
            slots, lock = Slots(made.slot_folder, 4), threading.Lock()

            def once(client: Client, b: int, q: int) -> Completion:
                client.restore_slot(b, f"{b:x}")
                return ask(client, [*blocks[b], *asked[q]], b)

            def run(number: int) -> None:
                rng, client = random.Random(number), Client(made.url, made.key)
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    # Without turns each client keeps to slots of its own: two requests for one slot
                    # would wait anyway.
                    b, q = (
                        (rng.randrange(4) if turns else 2 * number + rng.randrange(2)),
                        rng.randrange(3),
                    )
                    if turns:
                        with slots.lease(None):
                            got = once(client, b, q)
                    else:
                        got = once(client, b, q)
                    good = fresh[b, q]
                    verdict = (
                        "not_reused"
                        if got.cache_n != len(blocks[b])
                        else "other_tokens"
                        if got.tokens != good.tokens
                        else "other_logprobs"
                        if got.logprobs != good.logprobs
                        else "equal"
                    )
                    with lock:
                        counts[verdict] += 1

            threads = [threading.Thread(target=run, args=(n,)) for n in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            made.stop()
    result = {"turns": turns, "seconds": seconds, **counts}
    print(json.dumps(result), file=sys.stderr, flush=True)
    return result


def table(paths: Sequence[Path]) -> str:
    """The results as the Markdown of docs/server.md."""
    lines = []
    for path in paths:
        found = json.loads(path.read_text(encoding="utf-8"))
        window = f"window {found['window']}" if found["window"] else "no window layers"
        lines += [
            f"**{found['model']}** ({window}; {found['n_threads']} thread(s), ubatch "
            f"{found['n_ubatch']}; {found['created'][:10]}, "
            f"{found['machine']})",
            "",
            "| server | file | n | reused | evaluated | tokens = live | log-probabilities = live "
            "| = one-shot | "
            "first token, fresh / restored s |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for row in found["rows"]:
            start = f"| {row['configuration']} | {row['file']} | {row['n']} |"
            if "refused" in row:
                lines.append(f"{start} refused by the server | | | | | |")
                continue
            lines.append(
                f"{start} {row['reused']} | {row['evaluated']} | "
                f"{row['live']['tokens']}/{row['of']} | "
                f"{row['live']['logprobs']}/{row['of']} | "
                f"{row['one_shot']['logprobs']}/{row['of']} | "
                f"{row['fresh_seconds']:.2f} / {row['seconds']:.2f} |"
            )
        lines += ["", "Two clients at once, four slots:", ""] if found["two_clients"] else []
        for run in found["two_clients"]:
            total = sum(run[k] for k in ("equal", "other_logprobs", "other_tokens", "not_reused"))
            lines.append(
                f"- {'with' if run['turns'] else 'without'} turns, {run['seconds']:.0f} s: "
                f"{run['equal']} of {total} answers equal "
                f"to the fresh one; {run['other_logprobs']} with other log-probabilities, "
                f"{run['other_tokens']} with other tokens."
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", help="a model; or table, to print the results in the files that follow as Markdown"
    )
    parser.add_argument("lengths", nargs="+", help="comma-separated; files for table")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ubatch", type=int, default=512)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of the two clients; 0 leaves them out"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.model == "table":
        print(table([Path(name) for name in given.lengths]))
        return
    if given.out is None:
        parser.error("--out is needed")
    path = models.resolve(given.model)
    lengths = [int(part) for part in given.lengths[0].split(",")]
    base = Options(n_ctx=4096, n_ubatch=given.ubatch, n_threads=given.threads)
    binary = server.find_binary()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with llama.Model(path, vocab_only=True) as vocab:
        result: dict[str, Any] = {
            "schema": "taliesin.bench.server/1",
            "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "machine": f"{machine.system()}, {machine.cpu_name()}",
            "model": path.stem,
            "model_sha256": filehash.file_sha256(path),
            "window": vocab.window,
            "server_sha256": filehash.file_sha256(binary),
            "commit": COMMIT,
            "n_threads": given.threads,
            "n_ubatch": given.ubatch,
            "n_query": N_QUERY,
            "steps": STEPS,
            "n_probs": N_PROBS,
            "rows": [],
            "two_clients": [],
        }
        if given.out.exists():  # an interrupted run goes on
            before = json.loads(given.out.read_text(encoding="utf-8"))
            for name in ("model_sha256", "server_sha256", "n_threads", "n_ubatch"):
                if before[name] != result[name]:
                    parser.error(f"{given.out} holds results of another {name}")
            result = before

        def keep() -> None:
            given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

        for config in configurations(base, bool(vocab.window)):
            done = {row["n"] for row in result["rows"] if row["configuration"] == config.name}
            left = [n for n in lengths if n not in done]
            if left:
                result["rows"] += measure(config, path, vocab, left)
                keep()
        for turns in (True, False):
            if given.seconds and not any(run["turns"] == turns for run in result["two_clients"]):
                result["two_clients"].append(two_clients(base, path, vocab, turns, given.seconds))
                keep()


if __name__ == "__main__":
    main()
