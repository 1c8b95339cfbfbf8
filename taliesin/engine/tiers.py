"""`Tiers`: blocks of one library kept near one engine: in contexts of their own, in memory, or only
on disk.

    resident   a context that holds nothing but the block. A question's tokens are taken away in
               place afterwards (no cell is copied).
    memory     the block's state as `graft.prepare` laid it out, page-locked where a GPU computes.
    disk       the file, checked as `library`'s policy says.

A graft looks from top to bottom and keeps what it found further up, as far as the budgets allow;
the least recently used goes first. *The tier changes how long a graft takes and no bit of what
follows*: each resident block has a context of its own, because a context that holds other sequences
as well computes other bits (docs/exactness.md), and where a question cannot be taken away exactly
(`placement.rolls_back`) the block is applied again from the next tier, which the hits then say.

One object is for one thread. Does not know texts or questions; `router` picks blocks.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

from taliesin.engine import llama
from taliesin.engine.backend import Grafted
from taliesin.engine.embedded import Engine, InContext, settings_of
from taliesin.engine.graft import Prepared
from taliesin.store.blockfile import BlockFile
from taliesin.store.library import Library, Policy

Tier = Literal["resident", "memory", "disk"]
TIERS: tuple[Tier, ...] = ("resident", "memory", "disk")


class Hit(NamedTuple):
    """A block ready to be asked, where it came from, and the wall time that took."""

    grafted: Grafted[InContext]
    block_id: str
    tier: Tier
    seconds: float


class _Held(NamedTuple):
    """A state in the memory tier. `block` may be closed: only its header is used."""

    block: BlockFile
    prepared: Prepared

    @property
    def n_bytes(self) -> int:
        return self.prepared.memory.nbytes


@dataclass
class Tiers:
    """Grafts by block, from the nearest tier.

    Args:
        resident_bytes: what the resident contexts may allocate (KV cache, compute and output
            buffers); 0: none. One new context can go over it while it is being made.
        memory_bytes: what the states in memory may take, filler included; 0: none.
        n_extra: room for tokens after a block.
        policy: which files are hashed when they are read.

    `hits` counts grafts by tier and `evicted` what had to go, by tier.
    """

    engine: Engine
    library: Library
    resident_bytes: int = 0
    memory_bytes: int = 0
    n_extra: int = 1024
    policy: Policy = "once"
    hits: Counter[Tier] = field(init=False, default_factory=Counter)
    evicted: Counter[Tier] = field(init=False, default_factory=Counter)
    # least recently used first
    _resident: OrderedDict[str, Grafted[InContext]] = field(init=False, default_factory=OrderedDict)
    _memory: OrderedDict[str, _Held] = field(init=False, default_factory=OrderedDict)

    def graft(self, name_or_id: str) -> Hit:
        """The block, ready to be asked. It stays so until it is evicted or, if it is not resident,
        until the next graft.

        Raises:
            As `Library.open` and `Engine.graft`; what was near before stays near.
        """
        started = time.perf_counter()
        block_id = name_or_id if name_or_id in self._resident or name_or_id in self._memory else ""
        block_id = block_id or self.library.info(name_or_id).id
        tier: Tier
        grafted = self._resident.get(block_id)
        if grafted is not None:
            self._resident.move_to_end(block_id)
            lower = self._lower(block_id)
            tier = "resident" if grafted.put_back() else lower
        else:
            tier = self._lower(block_id)
            grafted = self._place(block_id)
        self.hits[tier] += 1
        return Hit(grafted, block_id, tier, time.perf_counter() - started)

    def near(self, block_id: str) -> Tier:
        """The tier that a graft of this block would come from, if nothing has to be applied
        again.
        """
        return "resident" if block_id in self._resident else self._lower(block_id)

    def used_bytes(self, tier: Literal["resident", "memory"]) -> int:
        """What a tier takes now, as its budget counts."""
        if tier == "resident":
            return sum(grafted.place.context.buffer_bytes for grafted in self._resident.values())
        return sum(held.n_bytes for held in self._memory.values())

    def close(self) -> None:
        """Let go of every context and state; the engine stays open."""
        while self._resident:
            self._resident.popitem()[1].place.context.close()
        self._memory.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- memory ------------------------------------------------------------------------------------

    def _lower(self, block_id: str) -> Tier:
        return "memory" if block_id in self._memory else "disk"

    def _held(self, block_id: str) -> _Held | None:
        held = self._memory.get(block_id)
        if held is not None:
            self._memory.move_to_end(block_id)
        return held

    def _keep(self, block_id: str, block: BlockFile, prepared: Prepared) -> None:
        """Put a state into the memory tier if the budget has room for it at all."""
        held = _Held(block, prepared)
        if block_id in self._memory or held.n_bytes > self.memory_bytes:
            return
        while self._memory and self.used_bytes("memory") + held.n_bytes > self.memory_bytes:
            self._memory.popitem(last=False)
            self.evicted["memory"] += 1
        self._memory[block_id] = held

    def _source(self, block_id: str, context: llama.Context) -> Callable[[], Prepared]:
        """Where a block that is used again gets its state from: the memory tier, or its file."""

        def prepared() -> Prepared:
            held = self._held(block_id)
            if held is not None:
                return held.prepared
            with self.library.open(block_id) as block:
                verify = self.library.needs_verification(block, self.policy)
                made = self.engine.prepare(context, block, verify=verify)
                if verify:
                    self.library.record_verified(block)
            self._keep(block_id, block, made)
            return made

        return prepared

    # -- contexts ----------------------------------------------------------------------------------

    def _place(self, block_id: str) -> Grafted[InContext]:
        """Graft a block that is not resident; afterwards it is, if the budget has room."""
        held = self._held(block_id)
        with nullcontext(held.block) if held is not None else self.library.open(block_id) as block:
            context = self._context(block) if self.resident_bytes else None
            try:
                grafted = self.engine.graft(
                    block,
                    library=self.library,
                    policy=self.policy,
                    n_extra=self.n_extra,
                    context=context,
                    prepared=held.prepared if held is not None else None,
                )
            except BaseException:
                if context is not None:
                    context.close()
                raise
        self._keep(block_id, block, grafted.place.prepared)
        grafted.place.source = self._source(block_id, grafted.place.context)
        if context is not None:
            self._resident[block_id] = grafted
        return grafted

    def _context(self, block: BlockFile) -> llama.Context | None:
        """A context for the block within the budget: the one of an evicted block if it fits, else a
        new one; None: no room.
        """
        settings = settings_of(block.header.recipe, block.path, {})
        n_tokens = len(block.header.tokens) + self.n_extra
        reusable = self._evict_for(settings, n_tokens)
        if reusable is not None:
            return reusable
        made = self.engine.new_context(settings, n_tokens)
        if made.buffer_bytes > self.resident_bytes:
            made.close()
            return None
        while (
            self._resident and self.used_bytes("resident") + made.buffer_bytes > self.resident_bytes
        ):
            self._evict().close()
        return made

    def _evict_for(self, settings: llama.Settings, n_tokens: int) -> llama.Context | None:
        """The least recently used resident's context, evicted, if there is no room for one more
        like it and it serves as well.
        """
        if not self._resident:
            return None
        context = next(iter(self._resident.values())).place.context
        full = self.used_bytes("resident") + context.buffer_bytes > self.resident_bytes
        same = (
            replace(context.settings, n_ctx=settings.n_ctx) == settings
            and context.settings.n_ctx >= n_tokens
        )
        return self._evict() if full and same else None

    def _evict(self) -> llama.Context:
        """Take the least recently used block's context away from it."""
        _, grafted = self._resident.popitem(last=False)
        self.evicted["resident"] += 1
        return grafted.place.context
