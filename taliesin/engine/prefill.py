"""`PrefixCache`: prefill that computes only what no earlier prompt began with, with a cold run's
bits.

    with Engine("gemma3-270m") as engine, PrefixCache(engine, n_ctx=8192) as cache:
        done = cache.prefill(ids)          # logits, and a context that goes on behind them
        ...                                # generate in done.context
        cache.commit()                     # keep what was new; also done by the next prefill

A *cold run* prefills the whole prompt from position 0, `n_ubatch` tokens at a time. Its state at a
multiple of `n_ubatch` does not depend on what follows, so it may be taken from an earlier prompt
that began with the same ids. Three places are asked, the nearest first: the context itself, whose
later cells are taken away; pieces in memory; pieces in a store. The rest is prefilled in the same
pieces as a cold run.

Promises: the logits after `prefill` and everything generated behind them are those of a cold run,
bit for bit, whatever was asked before. So no cell that was computed otherwise is ever used again:
not the positions after the last whole piece of a prompt, and no generated one (a cold run computes
those in pieces, generation one by one). A piece with a missing ancestor is a miss.
Deliberately does not know: text, chats, HTTP, or how a store keeps a piece.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from taliesin.engine import graft, llama
from taliesin.engine.embedded import Engine
from taliesin.engine.llama import Settings
from taliesin.errors import ContextFull, DecodeError, FormatError, RecipeMismatch, UsageError
from taliesin.host.canonical import canonical_json
from taliesin.state import pieces, placement, seqstate
from taliesin.store import piecefile
from taliesin.store.blockfile import BlockFile

Place = Literal["live", "memory", "disk", "none"]

DEFAULT_MEMORY_BYTES = 2 << 30


class Stored(Protocol):
    """Where pieces are kept beyond this process (`store.pieces`)."""

    def holds(self, name: str) -> bool:
        """Whether a piece seems to be there; `read` may still find that it is not whole."""

    def read(self, name: str) -> bytes | None:
        """The payload of a piece; None if it is not there or not whole."""

    def put(self, name: str, parent: str, ids: Sequence[int], payload: bytes) -> None:
        """Keep a piece; may do nothing (budget), and may do it later."""

    def used(self, names: Sequence[str]) -> None:
        """A chain of pieces, first to last, was used."""


class Prefilled(NamedTuple):
    """A prompt in a context. `logits`: (n_vocab,) float32 after its last token; `reused`: tokens
    that were not computed again, from `place`; `restore_seconds` and `compute_seconds` are wall
    time.
    """

    logits: npt.NDArray[np.float32]
    context: llama.Context
    n_tokens: int
    reused: int
    place: Place
    restore_seconds: float
    compute_seconds: float


class Stopped(DecodeError):
    """The caller asked for the prefill to end before it was done."""

    kind = "stopped"


@dataclass
class _Live:
    """What the context holds: `ids` of a prompt that were computed as a cold run computes them, up
    to its last whole piece; `names` of those pieces; and the marks that tell whether somebody else
    used the context since.
    """

    ids: npt.NDArray[np.int32]
    names: list[str]
    n_cleared: int
    windows: dict[int, bytes] = field(default_factory=dict)
    committed: bool = False


@dataclass
class PieceMemory:
    """Pieces in memory, up to `budget_bytes`; one shorter than `whole_bytes` lacks its window rows,
    and no boundary can be restored that looks at them.
    """

    budget_bytes: int
    whole_bytes: int
    used_bytes: int = field(init=False, default=0)
    evicted: int = field(init=False, default=0)
    # least recently used first; a child always stands before its parent
    _pieces: OrderedDict[str, bytes] = field(init=False, default_factory=OrderedDict)

    def get(self, name: str) -> bytes | None:
        return self._pieces.get(name)

    def is_whole(self, name: str) -> bool:
        return len(self._pieces.get(name, b"")) >= self.whole_bytes

    def keep(self, name: str, payload: bytes) -> None:
        """Take a piece in, in the place of one of that name. What is too much goes at `touch`."""
        if self.budget_bytes:
            self.used_bytes += len(payload) - len(self._pieces.get(name, b""))
            self._pieces[name] = payload

    def touch(self, names: list[str]) -> None:
        """Make a chain the most recently used one, leaf before root, and evict what is too much:
        least recently used first, so a leaf always before its parent.
        """
        for name in reversed(names):
            if name in self._pieces:
                self._pieces.move_to_end(name)
        while self.used_bytes > self.budget_bytes:
            _, payload = self._pieces.popitem(last=False)
            self.used_bytes -= len(payload)
            self.evicted += 1

    def clear(self) -> None:
        self._pieces.clear()
        self.used_bytes = 0


@dataclass
class PrefixCache:
    """Pieces of prompts near one engine, for one recipe. For one thread.

    Args:
        n_ctx: cells of its context, prompt and answer together.
        memory_bytes: what pieces in memory may take; 0 keeps only the live context.
        store: pieces beyond this process, or None.
        settings: how the context computes; the Engine's own if not given.

    `hits` counts tokens by the place they came from; "none" are those that were computed.

    Raises:
        UnsupportedModel: V is stored transposed, or the window cache has its full size.
    """

    engine: Engine
    n_ctx: int
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    store: Stored | None = None
    settings: Settings | None = None
    hits: Counter[Place] = field(init=False, default_factory=Counter)
    memory: PieceMemory = field(init=False)
    _context: llama.Context = field(init=False)
    _live: _Live | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        settings = replace(self.settings or self.engine.settings, n_ctx=self.n_ctx)
        self._context = llama.Context(self.engine.model, settings)
        self.n_ctx = self._context.settings.n_ctx
        self._n_ubatch = self._context.settings.n_ubatch
        recipe = self.engine.recipe(self._context)
        self.recipe_id = hashlib.sha256(canonical_json(recipe)).hexdigest()
        try:
            self._layout = self._learn_layout()
        except BaseException:
            self._context.close()
            raise
        self.memory = PieceMemory(self.memory_bytes, self._layout.additive_bytes)

    @property
    def context(self) -> llama.Context:
        """The context that prompts are prefilled in."""
        return self._context

    # -- the way of a prompt -----------------------------------------------------------------------

    def prefill(
        self,
        ids: Sequence[int] | npt.NDArray[np.int32],
        *,
        on_piece: Callable[[int, int], None] = lambda _done, _all: None,
        should_stop: Callable[[], bool] = lambda: False,
        fresh: bool = False,
    ) -> Prefilled:
        """Make the context hold the prompt `ids` as a cold run would, and give the logits after it.
        `fresh` is that cold run: nothing is reused, and nothing of it is kept.

        `on_piece(done, all)` is called with token counts after each computed piece; `should_stop`
        is asked before each.

        Raises:
            UsageError: no ids. ContextFull: more than `n_ctx`. Stopped: `should_stop` said so; the
            pieces that were computed are kept.
        """
        prompt = np.asarray(ids, np.int32)
        if not len(prompt):
            raise UsageError("nothing to prefill", expected="at least one token", got="none")
        if len(prompt) > self.n_ctx:
            raise ContextFull(
                "the prompt does not fit in the context",
                expected=f"at most {self.n_ctx} tokens",
                got=len(prompt),
                hint="a larger --ctx",
            )
        self.commit()
        names = self._names(prompt)
        started = time.perf_counter()
        reused, place = self._cleared() if fresh else self._restore(prompt, names)
        restored = time.perf_counter()
        self.hits[place] += reused
        live = _Live(prompt[:reused], names[: reused // self._n_ubatch], self._context.n_cleared)
        self._live = live
        logits = None
        at = reused
        while at < len(prompt):
            if should_stop():
                raise Stopped("the prefill was stopped", got=f"{at} of {len(prompt)} tokens")
            end = min(at + self._n_ubatch, len(prompt))
            logits = self._context.decode(prompt[at:end], at, logits=end == len(prompt))
            if end - at == self._n_ubatch:
                if self._context.ring:
                    live.windows[end] = bytes(self._context.partial_state())
                live.ids, live.names = prompt[:end], names[: end // self._n_ubatch]
            self.hits["none"] += end - at
            at = end
            on_piece(at, len(prompt))
        assert logits is not None  # at least the last token is always computed
        if fresh:
            self._live = None
        return Prefilled(
            logits,
            self._context,
            len(prompt),
            reused,
            place,
            restored - started,
            time.perf_counter() - restored,
        )

    def commit(self) -> None:
        """Keep the whole pieces of the last prompt that were new. Off the answer's path: call it
        when the answer is out.
        """
        live = self._valid_live()
        if live is None or live.committed:
            return
        live.committed = True
        store = self.store
        missing = [
            index
            for index, name in enumerate(live.names)
            if not self.memory.is_whole(name)
            and (self.memory_bytes or (store is not None and not store.holds(name)))
        ]
        new = self._cut(live, missing) if missing else {}
        for index, payload in new.items():
            self.memory.keep(live.names[index], payload)
        if store is not None:
            self._hand_over(store, live, new)
        self.memory.touch(live.names)
        live.windows.clear()

    def common(self, ids: Sequence[int] | npt.NDArray[np.int32]) -> int:
        """How many tokens of a prompt `prefill` would not compute, as things stand."""
        prompt = np.asarray(ids, np.int32)
        names = self._names(prompt)
        live = self._live_boundary(prompt)
        return max(live, self._chain(names) * self._n_ubatch)

    def adopt(self, block: BlockFile, *, verify: bool, threads: int = 2) -> int:
        """Take a saved block's state into memory as pieces; how many tokens it holds.

        Only its end can be restored on a model with window layers: the window rows of earlier
        boundaries are no part of a block.

        Raises:
            RecipeMismatch: another recipe than this cache's, evidence included.
            UsageError: it does not end on a multiple of n_ubatch, so that it equals no cold run.
            StoreDamaged, FormatError: as `graft.prepare`.
        """
        self.require_adoptable(block)
        tokens = block.header.tokens
        context = self._context
        payload = memoryview(bytearray(block.payload_bytes))
        block.read_into([(0, payload)], verify=verify, threads=threads)
        read = _reader(payload)
        state = seqstate.parse(read, len(payload), context.n_parts)
        placement.check(state, len(tokens), context.model.window, context.ring)
        names = piece_names(self.recipe_id, tokens, self._n_ubatch)
        for name, rows in zip(
            names, pieces.split(self._layout, read, state, len(tokens)), strict=True
        ):
            if not self.memory.is_whole(name):
                self.memory.keep(name, rows)
        self.memory.touch(names)
        return len(tokens)

    def require_adoptable(self, block: BlockFile) -> None:
        """Raises: as `adopt`, as far as the block's header tells."""
        tokens = block.header.tokens
        if hashlib.sha256(canonical_json(dict(block.header.recipe))).hexdigest() != self.recipe_id:
            raise RecipeMismatch("a block of another recipe", where=block.path)
        if len(tokens) % self._n_ubatch or block.header.equals != "one-shot":
            raise UsageError(
                "the block equals no cold run of a longer prompt",
                expected=f"a multiple of {self._n_ubatch} tokens",
                got=len(tokens),
                hint="taliesin save --aligned, with the same --ubatch",
            )

    def forget(self) -> None:
        """Let go of everything in memory and of what the context holds."""
        self._live = None
        self.memory.clear()
        self._context.clear()

    def close(self) -> None:
        self._live = None
        self.memory.clear()
        self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- names -------------------------------------------------------------------------------------

    def _names(self, prompt: npt.NDArray[np.int32]) -> list[str]:
        """Names of the whole pieces that a cold run of this prompt could begin with: all but the
        one that its last token is in, since a token must be left to compute.
        """
        return piece_names(self.recipe_id, prompt[: len(prompt) - 1], self._n_ubatch)

    # -- restoring ---------------------------------------------------------------------------------

    def _valid_live(self) -> _Live | None:
        live = self._live
        if live is None or self._context.n_cleared != live.n_cleared:
            return None
        return live

    def _live_boundary(self, prompt: npt.NDArray[np.int32]) -> int:
        live = self._valid_live()
        if live is None:
            return 0
        n = min(len(live.ids), len(prompt) - 1)
        differ = np.flatnonzero(live.ids[:n] != prompt[:n])
        same = int(differ[0]) if len(differ) else n
        return same - same % self._n_ubatch

    def _restore(self, prompt: npt.NDArray[np.int32], names: list[str]) -> tuple[int, Place]:
        """Put the longest known beginning into the context; how long, and where from."""
        live = self._live_boundary(prompt)
        held = self._chain(names)
        if live and live >= held * self._n_ubatch and self._take_back(live, names):
            return live, "live"
        payloads, place = self._payloads(names[:held])
        while payloads:
            try:
                self._apply(payloads)
                break
            except FormatError:  # a piece of another layout: as good as none
                payloads.pop()
        if not payloads:
            return self._cleared()
        for name, payload in zip(names, payloads, strict=False):
            if not self.memory.is_whole(name):
                self.memory.keep(name, payload)
        self.memory.touch(names[: len(payloads)])
        return len(payloads) * self._n_ubatch, place

    def _cleared(self) -> tuple[int, Place]:
        self._context.clear()
        return 0, "none"

    def _chain(self, names: list[str]) -> int:
        """How many pieces from the first on memory and store can put back."""
        count = next((i for i, name in enumerate(names) if not self._holds(name)), len(names))
        reach = pieces.pieces_of_window(self._layout)
        while count and not all(map(self._holds_whole, names[max(count - reach, 0) : count])):
            count -= 1
        return count

    def _holds(self, name: str) -> bool:
        return self.memory.get(name) is not None or (
            self.store is not None and self.store.holds(name)
        )

    def _holds_whole(self, name: str) -> bool:
        return self.memory.is_whole(name) or (self.store is not None and self.store.holds(name))

    def _payloads(self, names: list[str]) -> tuple[list[bytes], Place]:
        """The pieces of a chain, from memory where they are whole there, up to the first that
        neither place has.
        """
        place: Place = "memory"
        found: list[bytes] = []
        for name in names:
            payload = self.memory.get(name)
            if self.store is not None and not self.memory.is_whole(name):
                stored = self.store.read(name)
                if stored is not None:
                    payload, place = stored, "disk"
            if payload is None:
                break
            found.append(payload)
        return found, place

    def _take_back(self, n_tokens: int, names: list[str]) -> bool:
        """Roll the context back to a boundary in place; False if that cannot be done exactly."""
        context = self._context
        if graft.roll_back(context, n_tokens):
            return True
        index = n_tokens // self._n_ubatch
        wanted = names[max(index - pieces.pieces_of_window(self._layout), 0) : index]
        held = [self.memory.get(name) for name in wanted if self.memory.is_whole(name)]
        payloads = [payload for payload in held if payload is not None]
        if len(payloads) < len(wanted):
            return False
        state = pieces.join_window(self._layout, payloads, n_tokens)
        prepared = graft.prepare_state(
            context, state, n_tokens, window_only=True, staging=self.engine.staging
        )
        graft.apply_window(context, prepared)
        return True

    def _apply(self, payloads: list[bytes]) -> None:
        state = pieces.join(self._layout, payloads)
        n_tokens = len(payloads) * self._n_ubatch
        prepared = graft.prepare_state(self._context, state, n_tokens, staging=self.engine.staging)
        graft.apply(self._context, prepared)

    def _learn_layout(self) -> pieces.Layout:
        """The layout of this context's states, from a state of one token."""
        context = self._context
        context.decode([0], 0, logits=False)
        state = context.state()
        context.clear()
        parsed = seqstate.parse(_reader(state), len(state), context.n_parts)
        return pieces.layout(parsed, context.model.window, context.ring, self._n_ubatch)

    # -- keeping -----------------------------------------------------------------------------------

    def _cut(self, live: _Live, missing: list[int]) -> dict[int, bytes]:
        """The pieces in `missing`, by index; without those whose window was not looked at on the
        way, and is gone.
        """
        context, form = self._context, self._layout
        state = context.state()
        read = _reader(state)
        ordinary = seqstate.parse(read, len(state), context.n_parts).parts[0]
        found = {}
        for index in missing:
            end = (index + 1) * self._n_ubatch
            rows = b""
            if context.ring:
                partial = live.windows.get(end)
                if partial is None:
                    continue
                windows = _reader(memoryview(partial))
                part = seqstate.parse(windows, len(partial), 1).parts[0]
                rows = pieces.cut(windows, part, end - form.window_rows, end)
            found[index] = pieces.cut(read, ordinary, end - self._n_ubatch, end) + rows
        return found

    def _hand_over(self, store: Stored, live: _Live, new: dict[int, bytes]) -> None:
        """Give a store the pieces of the last prompt that it does not have."""
        for index, name in enumerate(live.names):
            if store.holds(name):
                continue
            payload = new.get(index)
            if payload is None and self.memory.is_whole(name):
                payload = self.memory.get(name)
            if payload is None:
                break  # what follows it could not be used
            first = index * self._n_ubatch
            own = live.ids[first : first + self._n_ubatch].tolist()
            store.put(name, live.names[index - 1] if index else "", own, payload)
        store.used(live.names)


def piece_names(recipe_id: str, ids: npt.NDArray[np.int32], n_ubatch: int) -> list[str]:
    """Names of the whole pieces of `ids` (`piecefile.following`). Equal beginnings have equal
    names.
    """
    names: list[str] = []
    for end in range(n_ubatch, len(ids) + 1, n_ubatch):
        before = names[-1] if names else recipe_id
        names.append(piecefile.following(before, ids[end - n_ubatch : end]))
    return names


def _reader(state: memoryview) -> seqstate.Reader:
    return lambda offset, size: bytes(state[offset : offset + size])
