"""`ServerBackend`: the Backend that asks a llama-server: computes blocks there and grafts them into
its slots.

Blocks live in the same library. A block of the embedded engine goes to a server as a slot file, one
that a server saved can come back to the embedded engine: both compute the same where every shared
field of the recipe is equal, and their states are the same bytes (a test compares them). What HTTP
lets one prove is less than what a library call does: equal token ids and equal log-probabilities of
the `client.N_PROBS` best tokens of every step, not equal logits. `served.LEVEL` says so wherever a
result is named.
"""

from __future__ import annotations

import functools
import hashlib
import mmap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

import numpy as np

from taliesin.engine import llama
from taliesin.engine import recipe as recipes
from taliesin.engine.backend import Align, Computed, EngineKind, Grafted, cut_at, equality
from taliesin.engine.recipe import Difference, Recipe
from taliesin.errors import RecipeMismatch, ServerError
from taliesin.host import filehash
from taliesin.models import resolve as models
from taliesin.server import certificate
from taliesin.server import recipe as server_recipe
from taliesin.server.process import Server
from taliesin.server.served import InSlot, Served, ring_of
from taliesin.server.slots import Slots
from taliesin.state import slotfile
from taliesin.store.blockfile import BlockFile
from taliesin.store.header import BlockHeader
from taliesin.store.library import Library, Policy


@dataclass
class ServerBackend:
    """One server, ready to compute blocks and graft them. Its options decide the recipe.

    Args:
        model_name: the model that the server serves, where it does not say so itself.

    Raises:
        ModelError, UnsupportedModel: as `llama.Model`. ServerError: not a llama-server's answers.
    """

    model_name: str = models.DEFAULT
    server: Server = field(kw_only=True)
    kind: EngineKind = field(init=False, default="server")
    settings: llama.Settings = field(init=False, default_factory=llama.Settings)
    gpu_layers: int = field(init=False, default=0)
    slots: Slots = field(init=False)
    served: Served = field(init=False)

    def __post_init__(self) -> None:
        path = self.server.model or models.resolve(self.model_name)
        self.model_sha256 = filehash.model_sha256(path)
        self.model = llama.Model(path, vocab_only=True)
        self.build, n_slots, self.n_ctx = self.server.client.layout()
        # Texts are split into blocks that fit a slot, whatever the model was trained for.
        self.model.n_ctx_train = min(self.model.n_ctx_train or self.n_ctx, self.n_ctx)
        options = self.server.options
        if options is not None:
            self.settings = server_recipe.settings_of(options, self.n_ctx, n_slots)
            self.gpu_layers = options.gpu_layers
        self.slots = Slots(self.server.slot_folder, n_slots)
        ring = ring_of(self.model, self.settings, self.n_ctx)
        self.served = Served(self.server, self.slots, self.n_ctx, self.model.window, ring)

    @property
    def inexact(self) -> list[str]:
        """See `recipe.inexact`."""
        return server_recipe.inexact(self.server, self.build)

    # -- the recipe --------------------------------------------------------------------------------

    def recipe(self) -> Recipe:
        """See `recipe.of_server`."""
        return server_recipe.of_server(
            self.server,
            self.settings,
            self.model,
            model_sha256=self.model_sha256,
            build=self.build,
            n_slots=self.slots.n_slots,
            ring=self.served.ring,
        )

    def differences(self, header: BlockHeader, where: object, inexact: bool) -> list[Difference]:
        """Shared recipe fields in which the block and this server differ; none, unless `inexact`.

        Raises:
            RecipeMismatch: a field differs that was not asked to be ignored, or that nothing can
            bridge.
        """
        if self.inexact and not inexact:
            raise RecipeMismatch(
                "this server's options are not ones that were measured exact",
                got="; ".join(self.inexact),
                where=self.server.url,
                hint="taliesin server start, or graft with --inexact and a label on the result",
            )
        shared = server_recipe.shared(self.server)
        here = self.recipe()
        return recipes.require(
            {name: header.recipe.get(name) for name in shared},
            {name: here.get(name) for name in shared},
            where=where,
            inexact=inexact,
        )

    # -- saving ------------------------------------------------------------------------------------

    def compute(
        self,
        tokens: Sequence[int],
        *,
        align: Align = "auto",
        settings: llama.Settings | None = None,
    ) -> Computed:
        """Let the server prefill `tokens` in an erased slot, and take what it saves.

        Raises:
            RecipeMismatch: the server's options are not exact ones, or `settings` are not the
            server's.
            UsageError, ContextFull, ServerError, FormatError: it is too short or too long, or the
            server fails.
        """
        if self.inexact:
            raise RecipeMismatch(
                "a block of this server would not be exact",
                got="; ".join(self.inexact),
                where=self.server.url,
                hint="taliesin server start",
            )
        if settings is not None and replace(settings, n_ctx=0) != replace(self.settings, n_ctx=0):
            raise RecipeMismatch(
                "a server computes as it was started", expected=settings, got=self.settings
            )
        cut = cut_at(len(tokens), align, self.settings.n_ubatch)
        ids = np.asarray(tokens, np.int32)
        block = ids[:cut].tolist()
        served = self.served
        served.require_room(cut + certificate.POSITIONS)
        client = self.server.client
        with self.slots.lease(None) as slot:
            slot.block = None
            client.erase_slot(slot.number)
            prefilled = client.complete(block, 0, slot.number)
            served.require_effective(0, cut, prefilled.cache_n, prefilled.prompt_n)
            saving = time.perf_counter()
            saved = served.saved(slot.number)
            state_seconds = time.perf_counter() - saving
            if saved.tokens.tolist() != block:
                raise ServerError(
                    "the server saved other tokens than it was given", where=self.server.url
                )
            state = served.state_of(saved)
            proof = certificate.take(served, self.model.n_vocab, block, slot.number)
        return Computed(
            tokens=ids[:cut],
            tail=ids[cut:],
            equals=equality(cut, self.settings.n_ubatch),
            recipe=self.recipe(),
            certificate=None,  # of logits, which HTTP does not give
            state=state,
            prefill_seconds=prefilled.prompt_seconds,
            state_seconds=state_seconds,
            extra=MappingProxyType({certificate.KEY: proof}),
        )

    @functools.cached_property
    def _n_stream(self) -> int:
        """Streams of the server's cache; of a server that others started, as a slot file of its own
        says.
        """
        if self.server.options is not None:
            return self.server.options.n_stream()
        with self.slots.lease(None) as slot:
            slot.block = None
            self.server.client.complete([max(self.model.bos, 0)], 0, slot.number)
            return self.served.saved(slot.number).n_stream

    # -- grafting ----------------------------------------------------------------------------------

    def graft(
        self,
        block: BlockFile,
        *,
        library: Library | None = None,
        policy: Policy = "once",
        inexact: bool = False,
        certify: bool = False,
    ) -> Grafted[InSlot]:
        """Check a block, lay its state out for this server and put it into a slot.

        Args:
            certify: re-run the block's certificate: token ids and log-probabilities of a block that
                a server saved, the greedy token ids of one of the embedded engine; done by itself
                where the evidence (CPU, binary) differs.

        Raises:
            RecipeMismatch: this server would not have computed the block, or its options are not
            exact ones.
            StoreDamaged, FormatError: the block's bytes; raised before the server is touched.
            CertificateMismatch: same recipe, other numbers.
            ServerError: the server refused it.
        """
        header = block.header
        differences = self.require_usable(block, inexact)
        started = time.perf_counter()
        payload = memoryview(mmap.mmap(-1, block.payload_bytes))
        verify = library is None or library.needs_verification(block, policy)
        block.read_into([(0, payload)], verify=verify, threads=self.settings.n_threads)
        ring = (
            self.served.ring
            if self.server.options
            else int(header.recipe.get("window_ring_cells") or 0)
        )
        image = slotfile.lay_out(payload, header.tokens, self.model.window, ring, self._n_stream)
        if library is not None and block.block_id is not None:
            if verify:
                library.record_verified(block)
            library.mark_used(block.block_id)
        key = block.block_id or hashlib.sha256(bytes.fromhex(block.root)).hexdigest()
        place = InSlot(
            self.served,
            header,
            key,
            image,
            read_seconds=time.perf_counter() - started,
            read_bytes=block.payload_bytes,
        )
        place.put_back()
        evidence = recipes.evidence_differences(header.recipe, self.recipe())
        proving = time.perf_counter()
        wanted = certify or bool(evidence and certificate.KEY in header.extra)
        certified = wanted and not (differences or self.inexact)
        if certified:
            certificate.require(place, block, self.model.end_of_generation)
        return Grafted(
            model=self.model,
            header=header,
            place=place,
            differences=differences,
            evidence=evidence,
            inexact=self.inexact,
            certified=certified,
            certify_seconds=time.perf_counter() - proving if certified else 0.0,
        )

    def require_usable(self, block: BlockFile, inexact: bool = False) -> list[Difference]:
        """What differs between the block's recipe and this server's, if that may be.

        Raises:
            RecipeMismatch: see `graft`. ServerError: this build never reuses a block of that
            size.
        """
        differences = self.differences(block.header, block.path, inexact)
        if (
            self.model.window
            and not self.settings.swa_full
            and len(block.header.tokens) <= self.model.window
        ):
            raise ServerError(
                "llama-server reuses no prompt that fits inside the window: it would evaluate "
                "the block again",
                expected=f"more than {self.model.window} tokens",
                got=len(block.header.tokens),
                where=block.path,
                hint="use the embedded engine for this block, or a server with --swa-full",
            )
        return differences

    def close(self) -> None:
        self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
