"""Which piece size a prefix cache should have on this machine: the smallest one whose prefill is
nearly as quick as that of the quickest.

Smaller pieces reuse more of a prompt, larger ones may be computed quicker. The size is part of the
recipe: with another one nothing stored is found again, so a choice is kept in a file for each
model, device, thread count and build, and made once.

Deliberately does not know: caches, servers.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from taliesin.engine import llama
from taliesin.engine.embedded import Engine
from taliesin.errors import FormatError
from taliesin.host import durable, records
from taliesin.host.canonical import canonical_json
from taliesin.host.records import Record

SIZES = (64, 128, 256, 512)
NEARLY = 0.9
"""Of the quickest size's tokens a second: what a smaller one may not fall below."""

_TOKENS = 512
_ROUNDS = 3
_ROUND_SECONDS = 20.0
"""No further round is begun after so long."""


class Choice(Record, frozen=True, kw_only=True):
    """The chosen size, and the tokens a second that were measured for each."""

    SCHEMA = "taliesin.ubatch/1"

    n_ubatch: int
    speeds: dict[str, float]


def smallest_quick(speeds: dict[int, float]) -> int:
    """The smallest size of those that are nearly the quickest."""
    best = max(speeds.values())
    return min(size for size, speed in speeds.items() if speed >= NEARLY * best)


def measure(engine: Engine, on_size: Callable[[int], None] = lambda _size: None) -> Choice:
    """Prefill the same tokens in pieces of each size, in contexts of their own, in turn; the best
    of each counts, since what else the machine does can only slow one down.
    """
    rng = random.Random(0)
    ids = [rng.randrange(engine.model.n_vocab) for _ in range(_TOKENS)]
    speeds = dict.fromkeys(SIZES, 0.0)
    began = time.perf_counter()
    for number in range(_ROUNDS):
        if number and time.perf_counter() - began > _ROUND_SECONDS:
            break
        for size in SIZES:
            on_size(size)
            settings = replace(engine.settings, n_ctx=_TOKENS, n_ubatch=size)
            context = llama.Context(engine.model, settings)
            try:
                context.decode(ids[:64], 0, logits=False)  # pages, caches, threads
                context.clear()
                started = time.perf_counter()
                context.decode(ids, 0)
                speed = _TOKENS / (time.perf_counter() - started)
            finally:
                context.close()
            speeds[size] = max(speeds[size], speed)
    return Choice(n_ubatch=smallest_quick(speeds), speeds={str(k): v for k, v in speeds.items()})


def choose(
    engine: Engine, folder: Path, on_size: Callable[[int], None] = lambda _size: None
) -> Choice:
    """The choice that was made here before, else one that is measured now and kept in `folder`."""
    context = llama.Context(engine.model, replace(engine.settings, n_ctx=_TOKENS, n_ubatch=512))
    try:
        recipe = engine.recipe(context)
    finally:
        context.close()
    path = folder / f"{hashlib.sha256(canonical_json(recipe)).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, FormatError):
        return records.read(path, Choice, what="the choice of --ubatch auto")
    choice = measure(engine, on_size)
    with contextlib.suppress(OSError):  # measured again the next time
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        durable.write(path, canonical_json(records.plain(choice)))
    return choice
