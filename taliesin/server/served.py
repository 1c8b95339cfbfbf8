"""A block in a slot of a llama-server: `Served`, the server and its slots, and `InSlot`, the place
of one block there.

A restore that llama-server reports as done proves nothing: it may evaluate the prompt again all the
same. So after every graft `cache_n` and `prompt_n` are read, and anything else than "the block
reused, the query evaluated" is an error that says what was evaluated again and why that is likely.

Deliberately does not know: recipes, certificates and libraries.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taliesin.engine.backend import Asked, EngineKind, Step
from taliesin.engine.graft import Restored
from taliesin.engine.llama import Model, Sampling, Settings
from taliesin.errors import ContextFull, ServerError, UnsupportedModel, UsageError
from taliesin.server.client import N_PROBS, Completion
from taliesin.server.process import Server
from taliesin.server.slots import Slot, Slots
from taliesin.state import placement, seqstate, slotfile
from taliesin.store.header import BlockHeader

LEVEL = f"tokens and log-probabilities ({N_PROBS} best of each step) equal"


def ring_of(model: Model, settings: Settings, n_ctx: int) -> int:
    """Cells of the window cache of one slot of `n_ctx` tokens; 0 without window layers."""
    if not model.window:
        return 0
    if settings.swa_full:
        return n_ctx
    return placement.ring_cells(model.window, settings.n_ubatch, settings.n_seq_max, n_ctx)


@dataclass(frozen=True)
class Served:
    """One server as its blocks see it: `n_ctx` tokens a slot, the model's `window` (0: none) and
    the cells of its window cache, `ring`.
    """

    server: Server
    slots: Slots
    n_ctx: int
    window: int
    ring: int

    def require_effective(self, n_block: int, n_query: int, cache_n: int, prompt_n: int) -> None:
        """Refuse an answer for which the server evaluated anything else than the query.

        Raises:
            ServerError: says what was evaluated again, and the likely cause.
        """
        if cache_n == n_block and prompt_n == n_query:
            return
        if cache_n > n_block:
            cause = "the slot held more than the block: others use this server's slots"
        elif self.server.options is None:
            cause = "the server's options are not known"
        elif self.server.options.cache_ram_mib:
            cause = (
                "--cache-ram: the server may have swapped the slot out between restore and request"
            )
        elif cache_n == 0 and self.window:
            cause = (
                "window layers: the server saw no position before the window (a slot file "
                "that is not laid out)"
            )
        elif cache_n == 0:
            cause = "the slot was emptied between restore and request"
        else:
            cause = f"the prompt's ids differ from the slot's at position {cache_n}"
        raise ServerError(
            "llama-server did not use the block as it should",
            expected=f"{n_block} tokens reused, {n_query} evaluated",
            got=f"{cache_n} reused, {prompt_n} evaluated",
            where=self.server.url,
            hint=cause,
        )

    def require_room(self, n_tokens: int) -> None:
        if n_tokens >= self.n_ctx:
            raise ContextFull(
                "a slot of the server has not enough room",
                expected=f"fewer than {self.n_ctx} tokens",
                got=n_tokens,
                hint="taliesin server start with a larger --ctx",
            )

    def saved(self, slot: int) -> slotfile.SlotFile:
        """A slot's content through a file of the server's folder, which is gone afterwards."""
        name = secrets.token_hex(8)
        path = self.server.slot_folder / name
        try:
            self.server.client.save_slot(slot, name)
            return slotfile.read(path)
        finally:
            path.unlink(missing_ok=True)

    def state_of(self, saved: slotfile.SlotFile) -> memoryview:
        """The state that a slot file of this server holds: never one that could not be put back.

        Raises:
            UnsupportedModel, FormatError: its cells are not those of a fresh run.
        """
        state = memoryview(b"".join(saved.payload()))
        if saved.windowed != bool(self.window):
            raise UnsupportedModel(
                "the server's cache is not of the kind that the model's metadata names",
                expected=f"window {self.window}",
                got=f"{len(saved.parts)} cache parts",
            )
        parsed = seqstate.parse(
            lambda at, size: bytes(state[at : at + size]), len(state), len(saved.parts)
        )
        placement.check(parsed, len(saved.tokens), self.window, self.ring)
        return state


@dataclass
class InSlot:
    """A block that a server can be asked about. See `backend.Place`.

    `block_id` is what the book of the slots calls it, `image` its slot file. `restores` counts how
    often its state went to the server.
    """

    served: Served
    header: BlockHeader
    block_id: str
    image: memoryview
    read_seconds: float
    read_bytes: int
    restore_seconds: float = 0.0
    restores: int = 0
    last: Completion | None = None
    kind: EngineKind = "server"
    level: str = LEVEL

    @property
    def restored(self) -> Restored:
        """What putting it there took; nothing was written where a slot held it already."""
        written = self.image.nbytes if self.restores else 0
        return Restored(
            len(self.header.tokens),
            self.read_bytes,
            written,
            self.read_seconds,
            self.restore_seconds,
        )

    @property
    def asked(self) -> Asked:
        """What the last question took, in the server's own counts and seconds."""
        if self.last is None:
            return Asked()
        answer = self.last
        return Asked(
            answer.cache_n,
            answer.prompt_n,
            answer.prompt_seconds,
            len(answer.tokens),
            answer.predict_seconds,
        )

    @property
    def resident(self) -> bool:
        """Whether a slot held the block all along: nothing had to be restored for it."""
        return not self.restores

    def put_back(self) -> bool:
        """Put the block into a slot; whether one held it already."""
        with self.served.slots.lease(self.block_id) as slot:
            return self.bring_in(slot, None)

    def prefill(self, query: Sequence[int]) -> npt.NDArray[np.float32]:
        """A server gives no logits.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "llama-server gives no logits",
            expected="a block that was grafted by the embedded engine",
            got=f"one on {self.served.server.url}",
            hint="generate, or complete with n_probs",
        )

    def generate(
        self, query: Sequence[int], n_predict: int, sampling: Sampling | None
    ) -> Iterator[Step]:
        """Tokens after the block and `query`, in one piece: the text comes with the last."""
        answer = self.complete(query, n_predict, sampling=sampling)
        for token in answer.tokens[:-1]:
            yield Step(token, "")
        if answer.tokens:
            yield Step(answer.tokens[-1], answer.text)

    def complete(
        self,
        query: Sequence[int],
        n_predict: int,
        *,
        n_probs: int = 0,
        sampling: Sampling | None = None,
        ignore_eos: bool = False,
    ) -> Completion:
        """Put the block into a slot, unless one holds it, and continue block and `query` (ids)
        there.

        Raises:
            ServerError: the server did not use the block in full, or failed.
            UsageError: `query` is empty: at least one token must be evaluated after a graft.
        """
        if not query:
            raise UsageError(
                "the prompt adds no token after the block", expected="at least one", got="none"
            )
        served, ids = self.served, self.header.tokens.tolist()
        served.require_room(len(ids) + len(query) + n_predict)

        def ask(slot: Slot) -> Completion:
            return served.server.client.complete(
                [*ids, *query],
                n_predict,
                slot.number,
                n_probs=n_probs,
                sampling=sampling,
                ignore_eos=ignore_eos,
            )

        with served.slots.lease(self.block_id) as slot:
            held = self.bring_in(slot, query[0])
            answer = ask(slot)
            if held and answer.cache_n != len(ids):
                # The book was wrong: the server was started anew, or others used the slot.
                slot.block = None
                self.bring_in(slot, query[0])
                answer = ask(slot)
            slot.next_token = query[0]
            slot.end = max(slot.end, len(ids) + len(query) + len(answer.tokens))
            served.require_effective(len(ids), len(query), answer.cache_n, answer.prompt_n)
        self.last = answer
        return answer

    def bring_in(self, slot: Slot, next_token: int | None) -> bool:
        """Make `slot`, which is leased, hold exactly the block; whether it did already.

        Where the slot holds the block and something after it that begins with `next_token`, the
        server would reuse that as well and compute the query in another split. One other token is
        evaluated then, which takes it away.
        """
        ids, served = self.header.tokens.tolist(), self.served
        client = served.server.client
        if slot.holds(self.block_id, served.window, served.ring) and slot.n_tokens == len(ids):
            if next_token is not None and slot.next_token == next_token:
                other = next_token - 1 if next_token else 1
                client.complete([*ids, other], 0, slot.number)
                slot.next_token, slot.end = other, max(slot.end, len(ids) + 1)
            return True
        started = time.perf_counter()
        name = secrets.token_hex(8)
        path = served.server.slot_folder / name
        slot.block = None
        try:
            slotfile.write(path, self.image)
            restored = client.restore_slot(slot.number, name)
        finally:
            path.unlink(missing_ok=True)
        if restored != len(ids):
            raise ServerError(
                "the server restored another number of tokens", expected=len(ids), got=restored
            )
        slot.block, slot.n_tokens = self.block_id, len(ids)
        slot.end, slot.next_token = len(ids), None
        self.restore_seconds = time.perf_counter() - started
        self.restores += 1
        return False
