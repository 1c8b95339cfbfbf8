"""What a budget does to a prefix cache: hit rates of a trace of hashes, without a model.

    report = simulate(lambda: hashed(path), shares=[0.1, 0.25, 1.0])

A budget is a share of the bytes that an unlimited cache would hold at the end of the trace; a piece
is the unit, since all pieces of a trace are equally large. A request hits the longest beginning all
of whose pieces are there, and then has all of its pieces kept.

Promises: a child is never kept without its parent; the order of the trace decides, no clock and no
chance. `POLICIES["lru"]` does what `store.pieces` does on the disk; "optimum" knows the future and
bounds every other one from above (nearly: it keeps parents, too).
Deliberately does not know: models, files.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from taliesin.measure import plots
from taliesin.measure.traces import Hashed

Name = Hashable


class Policy(Protocol):
    """Which pieces are there, and which one goes when there are too many."""

    def __contains__(self, name: Name) -> bool: ...
    def __len__(self) -> int: ...
    def use(self, names: Sequence[Name], number: int) -> None:
        """A chain, first to last, was used by request `number`, and is kept."""

    def evict(self) -> None:
        """Let one leaf go."""


class Lru:
    """The least recently used leaf goes: a chain is touched from its leaf to its root."""

    def __init__(self) -> None:
        self._pieces: OrderedDict[Name, None] = OrderedDict()

    def __contains__(self, name: Name) -> bool:
        return name in self._pieces

    def __len__(self) -> int:
        return len(self._pieces)

    def use(self, names: Sequence[Name], number: int) -> None:
        for name in reversed(names):
            self._pieces[name] = None
            self._pieces.move_to_end(name)

    def evict(self) -> None:
        self._pieces.popitem(last=False)


class Uses:
    """The leaf goes that was used least often, each further use worth a thousand requests of
    recency, up to eight.
    """

    def __init__(self) -> None:
        self._pieces: dict[Name, tuple[int, int]] = {}  # request that used it last, uses
        self._parent: dict[Name, Name | None] = {}
        self._children: defaultdict[Name, int] = defaultdict(int)
        self._leaves: list[tuple[float, int, Name]] = []
        self._ticket = 0

    def __contains__(self, name: Name) -> bool:
        return name in self._pieces

    def __len__(self) -> int:
        return len(self._pieces)

    def use(self, names: Sequence[Name], number: int) -> None:
        parent: Name | None = None
        for name in names:
            _, uses = self._pieces.get(name, (0, 0))
            if name not in self._pieces:
                self._parent[name] = parent
                if parent is not None:
                    self._children[parent] += 1
            self._pieces[name] = (number, uses + 1)
            parent = name
        if names:
            self._push(names[-1])

    def evict(self) -> None:
        while True:
            rank, _, name = heapq.heappop(self._leaves)
            if name not in self._pieces or self._children[name]:
                continue
            if self._rank(name) != rank:  # used again since it was put here
                self._push(name)
                continue
            break
        del self._pieces[name]
        parent = self._parent.pop(name)
        if parent is not None:
            self._children[parent] -= 1
            if not self._children[parent]:
                self._push(parent)

    def _push(self, name: Name) -> None:
        self._ticket += 1
        heapq.heappush(self._leaves, (self._rank(name), self._ticket, name))

    def _rank(self, name: Name) -> float:
        used, uses = self._pieces[name]
        return used + 1000.0 * min(uses - 1, 8)


class Optimum:
    """The leaf that is needed last, or never again, goes."""

    def __init__(self, trace: Sequence[Hashed]) -> None:
        self._needed: dict[Name, list[int]] = defaultdict(list)
        for number in range(len(trace) - 1, -1, -1):
            for name in trace[number].pieces:
                self._needed[name].append(number)
        self._end = len(trace)
        self._pieces: dict[Name, float] = {}
        self._heap: list[tuple[float, int, Name]] = []
        self._ticket = 0

    def __contains__(self, name: Name) -> bool:
        return name in self._pieces

    def __len__(self) -> int:
        return len(self._pieces)

    def use(self, names: Sequence[Name], number: int) -> None:
        for depth, name in enumerate(names):
            needed = self._needed[name]
            while needed and needed[-1] <= number:
                needed.pop()
            # Of one request's pieces the last goes first; a parent is needed as its children are.
            key = float(needed[-1] if needed else self._end) + depth * 1e-6
            self._pieces[name] = key
            self._ticket += 1
            heapq.heappush(self._heap, (-key, self._ticket, name))

    def evict(self) -> None:
        while True:
            key, _, name = heapq.heappop(self._heap)
            if self._pieces.get(name) == -key:
                del self._pieces[name]
                return


POLICIES: dict[str, Callable[[Sequence[Hashed]], Policy]] = {
    "lru": lambda _: Lru(),
    "uses": lambda _: Uses(),
    "optimum": Optimum,
}


class Line(NamedTuple):
    """One policy at one budget. budget: pieces, None for no bound; hit: prompt tokens that were
    there; prompt: all; written: pieces that were kept anew; evicted.
    """

    policy: str
    share: float | None
    budget: int | None
    hit: int
    prompt: int
    written: int
    evicted: int

    @property
    def rate(self) -> float:
        return self.hit / self.prompt if self.prompt else 0.0


def simulate(
    trace: Iterable[Hashed], shares: Sequence[float], policies: Sequence[str] = tuple(POLICIES)
) -> list[Line]:
    """A line for an unlimited cache, then one for each policy and share of its pieces."""
    requests = list(trace)
    unlimited = _play(requests, Lru(), None)
    lines = [Line("unlimited", None, None, *unlimited)]
    for policy in policies:
        for share in shares:
            budget = int(unlimited[2] * share)
            counts = _play(requests, POLICIES[policy](requests), budget)
            lines.append(Line(policy, share, budget, *counts))
    return lines


def plot(lines: Sequence[Line], path: Path) -> None:
    """Tokens found over the budget, a curve for each policy.

    Raises:
        UsageError: matplotlib is not installed.
    """
    pyplot = plots.pyplot()
    figure, axes = pyplot.subplots(figsize=(6.5, 4.2), layout="constrained")
    axes.axhline(100 * lines[0].rate, color="grey", linewidth=0.8, label="unlimited")
    for policy in dict.fromkeys(line.policy for line in lines[1:]):
        found = [line for line in lines if line.policy == policy]
        axes.plot(
            [line.share for line in found], [100 * line.rate for line in found], "o-", label=policy
        )
    axes.set_xscale("log")
    axes.set_xlabel("budget, as a share of an unlimited cache")
    axes.set_ylabel("prompt tokens found, per cent")
    axes.grid(True, alpha=0.2)
    axes.legend(fontsize=8)
    # No date: the same lines give the same file.
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
    pyplot.close(figure)


def _play(
    requests: Sequence[Hashed], policy: Policy, budget: int | None
) -> tuple[int, int, int, int]:
    hit = prompt = written = evicted = 0
    for number, request in enumerate(requests):
        held = 0
        for name in request.pieces:
            if name not in policy:
                break
            held += 1
        hit += min(held * request.n_tokens, request.prompt)
        prompt += request.prompt
        kept = request.pieces if budget is None else request.pieces[:budget]
        written += sum(name not in policy for name in kept)
        policy.use(kept, number)
        while budget is not None and len(policy) > budget:
            policy.evict()
            evicted += 1
    return hit, prompt, written, evicted
