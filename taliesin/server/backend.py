"""`ServerEngine`: the Engine's verbs on a llama-server: save texts as blocks, graft blocks,
generate and verify after them.

Blocks live in the same library. A block of the embedded engine goes to a server as a slot file, one
that a server saved can come
back to the embedded engine: both compute the same where every shared field of the recipe is equal,
and their states are the same bytes (a test compares them). What HTTP lets one prove is less than
what a library call does: equal token ids and equal log-probabilities of the `server.N_PROBS` best
tokens of every step, not equal logits. `LEVEL` says so wherever a result is named.

A restore that llama-server reports as done proves nothing: it may evaluate the prompt again all the
same. So after every graft `cache_n` and `prompt_n` are read, and anything else than "the block
reused, the query evaluated" is an error that says what was evaluated again and why that is likely.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import mmap
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from taliesin.engine import certificate, llama
from taliesin.engine import recipe as fingerprint
from taliesin.engine.embedded import Align, Engine, Prefilled, Step, cut_at, equality
from taliesin.engine.llama import Sampling
from taliesin.engine.recipe import Difference, Recipe
from taliesin.errors import (
    CertificateMismatch,
    ContextFull,
    RecipeMismatch,
    ServerError,
    UnsupportedModel,
    UsageError,
)
from taliesin.host import filehash
from taliesin.models import resolve as models
from taliesin.server.process import COMMIT, MAX_SLOTS, N_PROBS, Completion, Options, Server
from taliesin.server.slots import Slot, Slots
from taliesin.state import placement, seqstate, slotfile
from taliesin.store.blockfile import BlockFile
from taliesin.store.header import BlockHeader
from taliesin.store.library import Library, Policy

LEVEL = f"tokens and log-probabilities ({N_PROBS} best of each step) equal"

STEPS = 16

VERIFY_LENGTHS = (1, 7, 64)
"""Query tokens of a verification: a lone token, less than a kernel's row block, a full one."""

SHARED = (
    "model_sha256",
    "architecture",
    "llama_cpp_python",
    "instruction_set",
    "devices",
    "n_gpu_layers",
    "split",
    "n_ubatch",
    "n_threads",
    "flash_attn",
    "type_k",
    "type_v",
    "swa_full",
    "n_seq_max",
    "window",
    "window_ring_cells",
    "offload_kqv",
    "op_offload",
    "rope",
    "adapters",
    "environment",
)
"""Recipe fields that decide the numbers in both engines: equal ones mean the same computation."""

_CERTIFICATE = "server_certificate"  # the key of a block's meta object


class Row(NamedTuple):
    """One query of a verification: of `steps`, how many have the same token and how many the same
    log-probabilities.
    """

    query_tokens: int
    steps: int
    reused: int
    evaluated: int
    tokens_live: int
    logprobs_live: int
    tokens_one_shot: int
    logprobs_one_shot: int


@dataclass(frozen=True)
class Report:
    """What `verify` found on a server. `exact` is the verdict at `level`."""

    block_id: str
    title: str
    n_tokens: int
    promise: str
    level: str
    rows: list[Row]
    inexact: list[str]
    fresh_seconds: float
    graft_seconds: float

    @property
    def exact(self) -> bool:
        return not self.inexact and all(
            row.logprobs_live == row.steps
            and (self.promise != "one-shot" or row.logprobs_one_shot == row.steps)
            for row in self.rows
        )

    def as_dict(self) -> dict[str, Any]:
        fields = {k: v for k, v in self.__dict__.items() if k != "rows"}
        return fields | {"exact": self.exact, "rows": [row._asdict() for row in self.rows]}


@dataclass
class Grafted:
    """A block that a server can be asked about. `differences` and `inexact` are empty for an exact
    graft; `restores` counts how often its state went to the server."""

    engine: ServerEngine
    header: BlockHeader
    block_id: str
    image: memoryview
    differences: list[Difference]
    inexact: list[str]
    read_seconds: float
    read_bytes: int
    restore_seconds: float = 0.0
    certified: bool = False
    certify_seconds: float = 0.0
    restores: int = 0
    last: Completion | None = None

    @property
    def resident(self) -> bool:
        """Whether a slot held the block all along: nothing had to be restored for it."""
        return not self.restores

    @property
    def label(self) -> str:
        """What an answer may be called."""
        reasons = [*map(str, self.differences), *self.inexact]
        if reasons:
            return "inexact: " + "; ".join(reasons)
        return (
            "exact: same recipe"
            + (", certificate re-checked" if self.certified else "")
            + f"; level: {LEVEL}"
        )

    def query(self, question: str) -> list[int]:
        """Ids that follow the block for a question: the block's tail, the question, and the chat
        template's end.
        """
        return [
            *self.header.tail.tolist(),
            *self.engine.model.tokenize(question, special=False),
            *self.header.after_query,
        ]

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
        engine, ids = self.engine, self.header.tokens.tolist()
        engine.require_room(len(ids) + len(query) + n_predict)
        with engine.slots.lease(self.block_id) as slot:
            held = engine.bring_in(self, slot, query[0])
            answer = engine.server.client.complete(
                [*ids, *query],
                n_predict,
                slot.number,
                n_probs=n_probs,
                sampling=sampling,
                ignore_eos=ignore_eos,
            )
            if held and answer.cache_n != len(ids):
                # The book was wrong: the server was started anew, or others used the slot.
                slot.block = None
                engine.bring_in(self, slot, query[0])
                answer = engine.server.client.complete(
                    [*ids, *query],
                    n_predict,
                    slot.number,
                    n_probs=n_probs,
                    sampling=sampling,
                    ignore_eos=ignore_eos,
                )
            slot.next_token, slot.end = (
                query[0],
                max(slot.end, len(ids) + len(query) + len(answer.tokens)),
            )
            engine.require_effective(len(ids), len(query), answer.cache_n, answer.prompt_n)
        self.last = answer
        return answer

    def generate(
        self, question: str, n_predict: int = 128, sampling: Sampling | None = None
    ) -> Iterator[Step]:
        """The answer to `question`, in one piece: a token id of -1 where its text is not told
        apart.
        """
        answer = self.complete(self.query(question), n_predict, sampling=sampling)
        for token in answer.tokens[:-1]:
            yield Step(token, "")
        if answer.tokens:
            yield Step(answer.tokens[-1], answer.text)


@dataclass
class ServerEngine(Engine):
    """One server, ready to save and graft. Its options decide the recipe; `settings` and
    `gpu_layers` of the base follow them.

    Raises:
        ModelError, UnsupportedModel: as `llama.Model`. ServerError: the server serves another
        model.
    """

    server: Server = field(kw_only=True)
    slots: Slots = field(init=False)

    def __post_init__(self) -> None:
        path = self.server.model or models.resolve(self.model_name)
        self.model_sha256 = filehash.model_sha256(path)
        self.model = llama.Model(path, vocab_only=True)
        props = self.server.client.props()
        self.build = str(props.get("build_info", ""))
        try:
            n_slots = int(props["total_slots"])
            self.n_ctx = int(props["default_generation_settings"]["n_ctx"])
        except (KeyError, TypeError, ValueError) as error:
            raise ServerError(
                "not a llama-server's /props", got=repr(error), where=self.server.url
            ) from error
        if not (1 <= n_slots <= MAX_SLOTS and self.n_ctx > 0):
            raise ServerError(
                "a llama-server's slots are out of range",
                expected=f"1..{MAX_SLOTS} slots of at least one token",
                got=f"{n_slots} slots of {self.n_ctx}",
                where=self.server.url,
            )
        # Texts are split into blocks that fit a slot, whatever the model was trained for.
        self.model.n_ctx_train = min(self.model.n_ctx_train or self.n_ctx, self.n_ctx)
        options = self.server.options
        if options is not None:
            self.settings = llama.Settings(
                n_ctx=self.n_ctx,
                n_ubatch=options.n_ubatch,
                n_threads=options.n_threads,
                flash_attn=options.flash_attn,
                type_k=options.type_k,
                type_v=options.type_v,
                swa_full=options.swa_full,
                n_seq_max=n_slots if options.kv_unified else 1,
            )
            self.gpu_layers = options.gpu_layers
        self.slots = Slots(self.server.slot_folder, n_slots)

    @property
    def ring(self) -> int:
        """Cells of the window cache of one slot; 0 without window layers."""
        if not self.model.window:
            return 0
        if self.settings.swa_full:
            return self.n_ctx
        return placement.ring_cells(
            self.model.window, self.settings.n_ubatch, self.settings.n_seq_max, self.n_ctx
        )

    @property
    def inexact(self) -> list[str]:
        """Why nothing that this server computes may be called exact; empty for the options that
        were measured.
        """
        if self.server.options is None:
            return [
                "the server's options are not known: it was not started by taliesin server start"
            ]
        reasons = self.server.options.inexact()
        if COMMIT not in self.build:
            reasons.append(f"llama-server is of build {self.build!r}, not of commit {COMMIT}")
        return reasons

    # -- the recipe --------------------------------------------------------------------------------

    def server_recipe(self) -> Recipe:
        """The recipe of what this server computes: the embedded engine's fields, and `server` with
        its own.
        """
        settings, options = self.settings, self.server.options or Options()
        binary = self.server.binary
        return {
            "engine": "llama-server",
            "model_sha256": self.model_sha256,
            "llama_cpp_python": llama.SUPPORTED_VERSION
            if COMMIT in self.build
            else f"llama.cpp {self.build}",
            "instruction_set": self.server.instruction_set() or "unknown",
            "devices": ["CPU"] if not self.gpu_layers else ["unknown"],
            "n_gpu_layers": self.gpu_layers,
            "kv_unified": options.kv_unified,
            "window_ring_cells": 0 if settings.swa_full else self.ring,
            "environment": self.server.environment,
            **fingerprint.of_settings(settings, self.model),
            "server": {
                "build": self.build,
                "slots": self.slots.n_slots,
                "kv_unified": options.kv_unified,
                "slot_prompt_similarity": options.slot_prompt_similarity,
                "cache_ram_mib": options.cache_ram_mib,
                "ctx_checkpoints": options.ctx_checkpoints,
            },
            "evidence": {
                **fingerprint.evidence(on_gpu=bool(self.gpu_layers)),
                "libraries": {"llama-server": filehash.file_sha256(binary)} if binary else {},
            },
        }

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
        # Of a server that others started, only these can be known.
        names = SHARED if self.server.options else ("model_sha256", "llama_cpp_python")
        ours = self.server_recipe()
        stored, here = (
            {name: recipe.get(name) for name in names} for recipe in (header.recipe, ours)
        )
        return fingerprint.require(stored, here, where=where, inexact=inexact)

    # -- saving ------------------------------------------------------------------------------------

    def compute(
        self,
        tokens: Sequence[int],
        *,
        align: Align = "auto",
        settings: llama.Settings | None = None,
    ) -> Prefilled:
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
        self.require_room(cut + certificate.PROBE_TOKENS + STEPS)
        client = self.server.client
        with self.slots.lease(None) as slot:
            slot.block = None
            client.erase_slot(slot.number)
            prefilled = client.complete(block, 0, slot.number)
            self.require_effective(0, cut, prefilled.cache_n, prefilled.prompt_n)
            saving = time.perf_counter()
            saved = self._saved(slot.number)
            state_seconds = time.perf_counter() - saving
            if saved.tokens.tolist() != block:
                raise ServerError(
                    "the server saved other tokens than it was given", where=self.server.url
                )
            state = memoryview(b"".join(saved.payload()))
            self._require_placed(saved, state)
            proof = self._certificate(block, slot.number)
        return Prefilled(
            tokens=ids[:cut],
            tail=ids[cut:],
            equals=equality(cut, self.settings.n_ubatch),
            recipe=self.server_recipe(),
            certificate=None,  # of logits, which HTTP does not give
            state=state,
            prefill_seconds=prefilled.prompt_seconds,
            state_seconds=state_seconds,
            extra=MappingProxyType({_CERTIFICATE: proof}),
        )

    def _saved(self, slot: int) -> slotfile.SlotFile:
        """A slot's content through a file of the server's folder, which is gone afterwards."""
        name = secrets.token_hex(8)
        path = self.server.slot_folder / name
        try:
            self.server.client.save_slot(slot, name)
            return slotfile.read(path)
        finally:
            path.unlink(missing_ok=True)

    def _require_placed(self, saved: slotfile.SlotFile, state: memoryview) -> None:
        """Never store what could not be put back."""
        if saved.windowed != bool(self.model.window):
            raise UnsupportedModel(
                "the server's cache is not of the kind that the model's metadata names",
                expected=f"window {self.model.window}",
                got=f"{len(saved.parts)} cache parts",
            )
        parsed = seqstate.parse(
            lambda at, size: bytes(state[at : at + size]), len(state), len(saved.parts)
        )
        placement.check(parsed, len(saved.tokens), self.model.window, self.ring)

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
            return self._saved(slot.number).n_stream

    # -- grafting ----------------------------------------------------------------------------------

    def graft_block(
        self,
        block: BlockFile,
        *,
        library: Library | None = None,
        policy: Policy = "once",
        inexact: bool = False,
        certify: bool = False,
    ) -> Grafted:
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
            self.ring if self.server.options else int(header.recipe.get("window_ring_cells") or 0)
        )
        image = slotfile.lay_out(payload, header.tokens, self.model.window, ring, self._n_stream)
        if library is not None and block.block_id is not None:
            if verify:
                library.record_verified(block)
            library.mark_used(block.block_id)
        key = block.block_id or hashlib.sha256(bytes.fromhex(block.root)).hexdigest()
        grafted = Grafted(
            self,
            header,
            key,
            image,
            differences,
            self.inexact,
            time.perf_counter() - started,
            block.payload_bytes,
        )
        with self.slots.lease(key) as slot:
            self.bring_in(grafted, slot, None)
        evidence = fingerprint.evidence_differences(header.recipe, self.server_recipe())
        if (
            not differences
            and not self.inexact
            and (certify or (evidence and _CERTIFICATE in header.extra))
        ):
            proving = time.perf_counter()
            self._require_certificate(grafted, block)
            grafted.certified = True
            grafted.certify_seconds = time.perf_counter() - proving
        return grafted

    def require_usable(self, block: BlockFile, inexact: bool = False) -> list[Difference]:
        """What differs between the block's recipe and this server's, if that may be.

        Raises:
            RecipeMismatch: see `graft_block`. ServerError: this build never reuses a block of that
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

    def bring_in(self, grafted: Grafted, slot: Slot, next_token: int | None) -> bool:
        """Make `slot`, which is leased, hold exactly the block; whether it did already.

        Where the slot holds the block and something after it that begins with `next_token`, the
        server would reuse that as well and compute the query in another split. One other token is
        evaluated then, which takes it away.
        """
        ids = grafted.header.tokens.tolist()
        if slot.holds(grafted.block_id, self.model.window, self.ring) and slot.n_tokens == len(ids):
            if next_token is not None and slot.next_token == next_token:
                other = next_token - 1 if next_token else 1
                self.server.client.complete([*ids, other], 0, slot.number)
                slot.next_token, slot.end = other, max(slot.end, len(ids) + 1)
            return True
        started = time.perf_counter()
        name = secrets.token_hex(8)
        path = self.server.slot_folder / name
        slot.block = None
        try:
            slotfile.write(path, grafted.image)
            restored = self.server.client.restore_slot(slot.number, name)
        finally:
            path.unlink(missing_ok=True)
        if restored != len(ids):
            raise ServerError(
                "the server restored another number of tokens", expected=len(ids), got=restored
            )
        slot.block, slot.n_tokens, slot.end, slot.next_token = (
            grafted.block_id,
            len(ids),
            len(ids),
            None,
        )
        grafted.restore_seconds = time.perf_counter() - started
        grafted.restores += 1
        return False

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
        elif cache_n == 0 and self.model.window:
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

    # -- proof -------------------------------------------------------------------------------------

    def _certificate(self, ids: list[int], slot: int) -> dict[str, Any]:
        """What a fixed probe gives after the block that `slot` holds."""
        query = certificate.probe(np.asarray(ids, np.int32), self.model.n_vocab)
        answer = self.server.client.complete(
            [*ids, *query], STEPS, slot, n_probs=N_PROBS, ignore_eos=True
        )
        self.require_effective(len(ids), len(query), answer.cache_n, answer.prompt_n)
        return {
            "probe": query,
            "tokens": answer.tokens,
            "sha256": [digest(step) for step in answer.logprobs],
        }

    def _require_certificate(self, grafted: Grafted, block: BlockFile) -> None:
        header = grafted.header
        own = header.extra.get(_CERTIFICATE)
        if isinstance(own, dict):
            answer = grafted.complete(own["probe"], STEPS, n_probs=N_PROBS, ignore_eos=True)
            holds = (
                answer.tokens == own["tokens"]
                and [digest(step) for step in answer.logprobs] == own["sha256"]
            )
        elif header.certificate is not None:
            # The server ends at an end-of-generation token, the stored steps go on behind it.
            stop = self.model.end_of_generation
            greedy = list(
                itertools.takewhile(lambda token: token not in stop, header.certificate.greedy)
            )
            answer = grafted.complete(
                list(header.certificate.probe), len(header.certificate.greedy)
            )
            holds = answer.tokens[: len(greedy)] == greedy
        else:
            raise CertificateMismatch("the block carries no certificate", where=block.path)
        if not holds:
            raise CertificateMismatch(
                "the graft does not compute what the saving machine computed",
                where=block.path,
                hint="save the text again on this machine, or graft with --inexact and a label "
                "on the result",
            )

    def verify_block(
        self,
        block: BlockFile,
        *,
        lengths: tuple[int, ...] = VERIFY_LENGTHS,
        steps: int = STEPS,
        inexact: bool = False,
        on_row: Callable[[Row], None] = lambda _row: None,
    ) -> Report:
        """Compare grafts of `block` with this server's own runs: live (block, then block and query)
        and one-shot.

        A decoy is computed in the slot before each graft, so that a restore which does nothing
        cannot pass.
        """
        from taliesin.prove.verify import queries

        grafted = self.graft_block(block, inexact=inexact)
        header, client = grafted.header, self.server.client
        ids = header.tokens.tolist()
        bound = int(header.tokens.max()) + 1
        decoy = queries(bound, (max(64, min(len(ids), self.n_ctx - steps) // 2),), seed=1)[0]
        rows, fresh, grafts = [], [], []
        for query in queries(bound, lengths):
            self.require_room(len(ids) + len(query) + steps)

            def run(tokens: list[int], slot: Slot) -> Completion:
                return client.complete(tokens, steps, slot.number, n_probs=N_PROBS, ignore_eos=True)

            with self.slots.lease(None) as slot:
                slot.block = None
                client.erase_slot(slot.number)
                began = time.perf_counter()
                client.complete(ids, 0, slot.number)
                live = run([*ids, *query], slot)
                fresh.append(time.perf_counter() - began - live.predict_seconds)
                client.erase_slot(slot.number)
                one_shot = run([*ids, *query], slot)
                client.complete(decoy, 1, slot.number)
            began = time.perf_counter()
            tested = grafted.complete(query, steps, n_probs=N_PROBS, ignore_eos=True)
            grafts.append(time.perf_counter() - began - tested.predict_seconds)
            rows.append(compare(len(query), steps, tested, live, one_shot))
            on_row(rows[-1])
        return Report(
            block.block_id or "",
            header.title,
            len(ids),
            header.equals,
            LEVEL,
            rows,
            [*map(str, grafted.differences), *self.inexact],
            float(np.median(fresh)),
            float(np.median(grafts)),
        )

    def close(self) -> None:
        self.model.close()


def compare(
    query_tokens: int, steps: int, tested: Completion, live: Completion, one_shot: Completion
) -> Row:
    """Equal steps of a graft against the two references; a step without reported probabilities
    counts as different.
    """

    def same(left: Sequence[object], right: Sequence[object]) -> int:
        return sum(a == b for a, b in zip(left, right, strict=False))

    return Row(
        query_tokens,
        steps,
        tested.cache_n,
        tested.prompt_n,
        same(tested.tokens, live.tokens),
        same(tested.logprobs, live.logprobs),
        same(tested.tokens, one_shot.tokens),
        same(tested.logprobs, one_shot.logprobs),
    )


def digest(step: tuple[tuple[int, float], ...]) -> str:
    """SHA-256 (hex) of one step's (id, log-probability) pairs as JSON, all digits."""
    return hashlib.sha256(json.dumps(step, separators=(",", ":")).encode()).hexdigest()


def options_for(recipe: Mapping[str, Any], n_ctx: int) -> Options:
    """Options of a server that computes as a block's recipe says.

    Raises:
        RecipeMismatch: no server with exact options does.
    """
    names = ("n_ubatch", "n_threads", "flash_attn", "type_k", "type_v", "swa_full")
    try:
        found = {name: recipe[name] for name in names}
        return Options(n_ctx=n_ctx, gpu_layers=recipe.get("n_gpu_layers", 0), **found)
    except (KeyError, TypeError, UsageError) as error:
        raise RecipeMismatch(
            "the block's recipe does not say how a server is to compute", got=error
        ) from error
