"""The proof: a block's graft against a fresh recompute, in two processes, every logits vector
hashed.

What is compared, for each query and trial: the logits after the query and after each greedy step.
*Reference*: an ordinary context in a process of its own, the block prefilled, the query decoded.
*Tested*: another process, a decoy prompt decoded first (so that a graft that does nothing cannot
pass), the block grafted by the same code that `taliesin graft` runs. Where the block promises
equality with the one-shot prompt, that is computed as well.

A verifier is worth as much as its failures: `Sabotage` names grafts that are broken on purpose,
each of which must be caught.

Cost: one prefill of the block for each query, trial and reference; the one-shot reference is
computed once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taliesin.engine.backend import LOGITS
from taliesin.errors import TaliesinError, UsageError
from taliesin.prove.equivalence import Logits, Pair, compare, statistics
from taliesin.prove.report import VerifyReport, VerifyRow, judged
from taliesin.store.blockfile import BlockFile

QUERY_LENGTHS = (1, 7, 64, 600)
"""A lone token, less than a kernel's row block, a full one, and more than one ubatch."""

STEPS = 16
TRIALS = 5
SAMPLES = 50
DECOY_TOKENS = 160
_SEED = 20260701


class Sabotage(StrEnum):
    """Grafts that are broken on purpose, to show that the verifier sees it."""

    PLAIN_SWA = "plain-swa"  # window cells restored by llama.cpp's own call, without ring placement
    SHIFT = "shift"  # the graft moved by one position
    BITFLIP = "bitflip"  # one bit of one stored value, after the integrity check
    THREADS = "threads"  # another thread count than the recipe's


@dataclass(frozen=True)
class Job:
    """What a worker process computes, as JSON on its stdin."""

    role: str  # fresh | one-shot | graft
    model: str
    gpu_layers: int
    block: str
    queries: list[list[int]]
    decoy: list[int]
    n_steps: int
    trials: int
    vectors: str  # folder for logits, one file a different vector, named by its hash
    sabotage: str | None = None


class Run(NamedTuple):
    """One query of one trial: the digest of each logits vector, and the seconds until the first."""

    trial: int
    query: int
    digests: list[str]
    first_seconds: float


def queries(
    n_vocab: int, lengths: tuple[int, ...] = QUERY_LENGTHS, seed: int = _SEED
) -> list[list[int]]:
    """Seeded token ids, one list for each length."""
    rng = np.random.default_rng(seed)
    low, high = min(10, n_vocab - 1), min(n_vocab, 40_000)
    return [rng.integers(low, high, length).tolist() for length in lengths]


def verify(
    block: BlockFile,
    model: Path,
    *,
    gpu_layers: int = 0,
    trials: int = TRIALS,
    samples: int = SAMPLES,
    n_steps: int = STEPS,
    lengths: tuple[int, ...] = QUERY_LENGTHS,
    sabotage: Sabotage | None = None,
    one_shot: bool = True,
    fresh_trials: int | None = None,
    on_run: Callable[[str, Run], None] = lambda _role, _run: None,
) -> VerifyReport:
    """Compare grafts of `block` with fresh recomputes of its tokens on `model`.

    `one_shot` False leaves the one-shot reference out where the block does not promise to equal it.
    `fresh_trials` computes the reference fewer times than `trials` (prefills are what a long block
    costs); grafts then take turns among them.

    Raises:
        UsageError: a count out of range, or a sabotage that does not exist for this block.
        TaliesinError: a worker failed; its error is passed on.
    """
    n_fresh = trials if fresh_trials is None else min(fresh_trials, trials)
    if min(trials, n_fresh) < 1 or samples < 1 or n_steps < 0 or not lengths or min(lengths) < 1:
        raise UsageError(
            "a count is out of range",
            expected="trials, samples and query lengths at least 1, steps at least 0",
            got=f"{trials}, {samples}, {', '.join(map(str, lengths)) or 'no length'}, {n_steps}",
        )
    recipe = dict(block.header.recipe)
    if sabotage is Sabotage.PLAIN_SWA and not recipe.get("window"):
        raise UsageError(
            "plain-swa breaks window layers, and this model has none",
            got=recipe.get("architecture"),
        )
    ids = queries(_n_vocab_bound(block), lengths)
    decoy = queries(_n_vocab_bound(block), (DECOY_TOKENS,), _SEED + 1)[0]
    with tempfile.TemporaryDirectory(prefix="taliesin-verify-") as folder:
        job = Job(
            "fresh", str(model), gpu_layers, str(block.path), ids, decoy, n_steps, trials, folder
        )
        # the mapping from (trial, query) to runs of each role
        computed = {(r.trial, r.query): r for r in _worker(_as(job, trials=n_fresh), on_run)}
        fresh = {
            (trial, query): computed[trial % n_fresh, query]
            for trial in range(trials)
            for query in range(len(ids))
        }
        whole: dict[int, Run] | None = None
        if one_shot or block.header.equals == "one-shot":
            whole = {r.query: r for r in _worker(_as(job, role="one-shot", trials=1), on_run)}
        tested = {
            (r.trial, r.query): r
            for r in _worker(_as(job, role="graft", sabotage=sabotage and sabotage.value), on_run)
        }
        rows = [
            _row(query, len(ids[query]), fresh, whole, tested, trials) for query in range(len(ids))
        ]
        pairs = _sample(fresh, tested, Path(folder), samples)
    verdict = judged(rows, block.header.equals)
    return VerifyReport(
        name=block.block_id or "",
        engine="embedded",
        level=LOGITS,
        block_id=block.block_id or "",
        title=block.header.title,
        n_tokens=len(block.header.tokens),
        promise=block.header.equals,
        trials=trials,
        n_steps=n_steps,
        rows=rows,
        block_then_query_holds=verdict.block_then_query,
        one_shot_holds=verdict.one_shot,
        statistics=statistics(pairs),
        fresh_seconds=float(np.median([r.first_seconds for r in fresh.values() if r.query == 0])),
        graft_seconds=float(np.median([r.first_seconds for r in tested.values() if r.query == 0])),
        sabotage=sabotage and sabotage.value,
        recipe=recipe,
        inexact=[],
        exact=verdict.exact,
    )


def _n_vocab_bound(block: BlockFile) -> int:
    """A vocabulary size that is surely not too large: the block's own largest id says how far ids
    go.
    """
    return int(block.header.tokens.max()) + 1


def _as(job: Job, **changes: Any) -> Job:
    return Job(**{**asdict(job), **changes})


def _row(
    query: int,
    n_tokens: int,
    fresh: dict[tuple[int, int], Run],
    whole: dict[int, Run] | None,
    tested: dict[tuple[int, int], Run],
    trials: int,
) -> VerifyRow:
    n = equal = equal_one_shot = 0
    first: int | None = None
    for trial in range(trials):
        got = tested[trial, query].digests
        same = [a == b for a, b in zip(got, fresh[trial, query].digests, strict=True)]
        n += len(same)
        equal += sum(same)
        if whole is not None:
            equal_one_shot += sum(a == b for a, b in zip(got, whole[query].digests, strict=True))
        if not all(same):
            first = min(same.index(False), first if first is not None else len(same))
    return VerifyRow(
        query_tokens=n_tokens,
        n_vectors=n,
        equal_block_then_query=equal,
        equal_one_shot=equal_one_shot if whole is not None else None,
        first_difference=first,
    )


def _sample(
    fresh: dict[tuple[int, int], Run],
    tested: dict[tuple[int, int], Run],
    folder: Path,
    samples: int,
) -> list[Pair]:
    """Up to `samples` pairs, spread evenly over all vectors of all runs."""
    both = [
        (a, b)
        for key in sorted(fresh)
        for a, b in zip(fresh[key].digests, tested[key].digests, strict=True)
    ]
    chosen = np.unique(np.linspace(0, len(both) - 1, min(samples, len(both))).astype(int))
    return [compare(load(folder, both[i][0]), load(folder, both[i][1])) for i in chosen]


def load(folder: Path, digest: str) -> Logits:
    vector: Logits = np.load(folder / f"{digest}.npy")
    return vector


def store(folder: Path, digest: str, logits: Logits) -> None:
    """Keep a vector once, whoever computed it."""
    path = folder / f"{digest}.npy"
    if not path.exists():
        np.save(path, logits)


def _worker(job: Job, on_run: Callable[[str, Run], None]) -> Iterator[Run]:
    """Run a job in a process of its own; its runs as they come.

    Raises:
        TaliesinError: the worker's own error, or that it died.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "taliesin.prove.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps(asdict(job)))
        process.stdin.close()
        for line in process.stdout:
            message = json.loads(line)
            if "error" in message:
                error = message["error"]
                raised = TaliesinError(
                    error["message"],
                    expected=error.get("expected"),
                    got=error.get("got"),
                    where=error.get("where"),
                    hint=error.get("hint"),
                )
                raised.exit_code, raised.kind = error["exit_code"], error["kind"]
                raise raised
            run = Run(**message)
            on_run(job.role, run)
            yield run
        complaint = process.stderr.read()
        if process.wait():
            last = complaint.strip().splitlines()[-1:] or ["no message"]
            raise TaliesinError(
                f"the {job.role} process died",
                expected="exit code 0",
                got=f"{process.returncode}: {last[0]}",
            )
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()
