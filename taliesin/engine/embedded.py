"""`Engine`: the Backend with the weights in this process: one loaded model that computes blocks,
grafts them, and generates after them.

An Engine keeps one context and empties it between uses (measured equal to a new one); a graft is
therefore valid until the Engine is used for something else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from taliesin.engine import certificate, graft, llama
from taliesin.engine import recipe as recipes
from taliesin.engine.backend import (
    LOGITS,
    Align,
    Asked,
    Computed,
    EngineKind,
    Grafted,
    Step,
    cut_at,
    equality,
)
from taliesin.engine.llama import Sampling, Settings
from taliesin.engine.recipe import Recipe
from taliesin.engine.staging import Staging
from taliesin.errors import DecodeError, RecipeMismatch
from taliesin.host.machine import usable_cores
from taliesin.models import resolve as models
from taliesin.state import placement, seqstate
from taliesin.store.blockfile import BlockFile
from taliesin.store.header import BlockHeader
from taliesin.store.library import Library, Policy

SETTINGS = (
    "n_ubatch",
    "n_threads",
    "flash_attn",
    "type_k",
    "type_v",
    "swa_full",
    "n_seq_max",
    "offload_kqv",
    "op_offload",
)
"""The fields of a recipe that say how its context was made."""

_CONTEXT_STEP = 1024  # contexts are made in steps of this size, so that near lengths share one


@dataclass
class InContext:
    """A block in a context: the Engine's own, or one that was given for it. See `backend.Place`.

    `source` gives the block's state, ready to be applied.
    """

    engine: Engine
    header: BlockHeader
    context: llama.Context
    source: Callable[[], graft.Prepared]
    restored: graft.Restored
    asked: Asked = field(default_factory=Asked)
    resident: bool = False
    kind: EngineKind = "embedded"
    level: str = LOGITS

    def __post_init__(self) -> None:
        self._mark()

    def _mark(self) -> None:
        self._n_cleared, self._n_decoded = self.context.n_cleared, self.context.n_decoded

    @property
    def prepared(self) -> graft.Prepared:
        """The block's state, ready to be applied."""
        return self.source()

    def put_back(self) -> bool:
        """Make the context hold exactly the block again; False if its state had to be applied anew
        for that.

        Raises:
            DecodeError: the context was closed for a block of another size or recipe: graft again.
        """
        if self.context.closed:
            raise DecodeError(
                "the block's context is closed",
                where=self.header.title,
                hint="graft the block again",
            )
        in_place = True
        if self.context.n_cleared != self._n_cleared:  # something else was put there
            in_place = False
        elif self.context.n_decoded != self._n_decoded:
            in_place = graft.roll_back(self.context, len(self.header.tokens))
        if not in_place:
            graft.apply(self.context, self.prepared)
        self._mark()
        return in_place

    def prefill(self, query: Sequence[int]) -> npt.NDArray[np.float32]:
        """See `Grafted.prefill`."""
        if not query:
            raise DecodeError(
                "the prompt adds no token after the block", expected="at least one", got="none"
            )
        self.put_back()
        started = time.perf_counter()
        logits = self.context.decode(query, len(self.header.tokens))
        assert logits is not None
        seconds = time.perf_counter() - started
        self.asked = Asked(len(self.header.tokens), len(query), seconds)
        return logits

    def generate(
        self, query: Sequence[int], n_predict: int, sampling: Sampling | None
    ) -> Iterator[Step]:
        """Tokens after the block and `query`, until a stop token, `n_predict` or the context's
        end.
        """
        self.prefill(query)
        started = time.perf_counter()
        position, n_generated = len(self.header.tokens) + len(query), 0
        try:
            for step in self.engine.continue_from(
                self.context, position, n_predict, sampling, frozenset(self.header.stop)
            ):
                n_generated += step.token >= 0
                yield step
        finally:
            self.asked = self.asked._replace(
                n_generated=n_generated, generate_seconds=time.perf_counter() - started
            )


@dataclass
class Engine:
    """A model ready to compute blocks and graft them.

    Args:
        model: a catalogue name or the path of a GGUF file.
        settings: how contexts compute when nothing else says so; a graft follows its block's recipe
        instead.
        gpu_layers: layers on the GPU (-1: all).

    Raises:
        ModelError, EngineUnavailable, UnsupportedModel: as `models.resolve` and `llama.Model`.
    """

    model_name: str = models.DEFAULT
    settings: Settings = field(default_factory=Settings)
    gpu_layers: int = 0
    kind: EngineKind = field(init=False, default="embedded")
    staging: Staging | None = field(init=False, default=None)
    _context: llama.Context | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.gpu_layers:
            self.staging = Staging()
        path = models.resolve(self.model_name)
        self.model_sha256 = models.model_sha256(path)
        self.model = llama.Model(path, self.gpu_layers)

    # -- blocks ------------------------------------------------------------------------------------

    def compute(
        self, tokens: Sequence[int], *, align: Align = "auto", settings: Settings | None = None
    ) -> Computed:
        """Prefill `tokens` from position 0 under `settings` (the Engine's own if not given); cut as
        in `save.save`.

        Raises:
            UsageError: "aligned", and there are fewer tokens than n_ubatch.
            FormatError: the state is not one that could be put back.
        """
        settings = settings or self.settings
        cut = cut_at(len(tokens), align, settings.n_ubatch)
        ids = np.asarray(tokens, np.int32)
        context = self.context(settings, cut + certificate.POSITIONS)
        started = time.perf_counter()
        context.decode(ids[:cut], 0, logits=False)
        context.synchronize()
        prefilled = time.perf_counter()
        state = context.state()
        stated = time.perf_counter()
        parsed = seqstate.parse(
            lambda at, size: bytes(state[at : at + size]), len(state), context.n_parts
        )
        # never store what could not be put back
        placement.check(parsed, cut, self.model.window, context.ring)
        return Computed(
            tokens=ids[:cut],
            tail=ids[cut:],
            equals=equality(cut, settings.n_ubatch),
            recipe=self.recipe(context),
            certificate=certificate.take(context, ids[:cut]),
            state=state,
            prefill_seconds=prefilled - started,
            state_seconds=stated - prefilled,
        )

    def prepare(self, context: llama.Context, block: BlockFile, *, verify: bool) -> graft.Prepared:
        """`graft.prepare`; for a GPU into page-locked memory that is used again, and with every
        core: one alone is slower than the GPU.
        """
        if self.staging is None:
            return graft.prepare(context, block, verify=verify, threads=context.settings.n_threads)
        return graft.prepare(
            context, block, verify=verify, threads=usable_cores(), staging=self.staging
        )

    def graft(
        self,
        block: BlockFile,
        *,
        library: Library | None = None,
        policy: Policy = "once",
        overrides: dict[str, Any] | None = None,
        inexact: bool = False,
        certify: bool = False,
        n_extra: int = 1024,
        context: llama.Context | None = None,
        prepared: graft.Prepared | None = None,
    ) -> Grafted[InContext]:
        """Put a block into this Engine's context under its own recipe.

        Args:
            library: where `policy` keeps which files were hashed; without one the payload is always
            hashed.
            overrides: settings that differ from the block's recipe on purpose; refused unless
            `inexact`.
            certify: re-run the certificate; done by itself where the evidence (CPU, libraries,
            driver) differs.
            n_extra: room for tokens after the block.
            context: put it there instead (a context made by `new_context` for this block).
            prepared: its state, if `graft.prepare` made it before; the file's payload is then not
            read, and `block` may be closed.

        Raises:
            RecipeMismatch: this engine would not have computed the block.
            StoreDamaged, FormatError: the block's bytes; raised before llama.cpp is touched.
            CertificateMismatch: same recipe, other numbers.
        """
        header = block.header
        recipe = header.recipe
        if recipe.get("engine") == "llama-server":
            recipe = recipes.of_embedded_twin(recipe)
        settings = settings_of(recipe, block.path, overrides or {})
        # The model first: another one would need another context.
        if recipe.get("model_sha256") != self.model_sha256:
            recipes.require(
                {"model_sha256": recipe.get("model_sha256")},
                {"model_sha256": self.model_sha256},
                where=block.path,
            )
        if context is None:
            context = self.context(
                settings, len(header.tokens) + max(n_extra, certificate.POSITIONS)
            )
        here = self.recipe(context)
        differences = recipes.require(recipe, here, where=block.path, inexact=inexact)
        evidence = recipes.evidence_differences(recipe, here)
        given = prepared is not None
        if prepared is None:
            verify = library is None or library.needs_verification(block, policy)
            prepared = self.prepare(context, block, verify=verify)
            if library is not None and verify:
                library.record_verified(block)
        if library is not None and block.block_id is not None:
            library.mark_used(block.block_id)
        place_seconds = graft.apply(context, prepared)
        proving = time.perf_counter()
        certified = False
        if header.certificate is not None and not differences and (certify or evidence):
            graft.require_cell_order(context, len(header.tokens))
            certificate.require(context, header.certificate, len(header.tokens), block.path)
            graft.apply(context, prepared)  # the probe added tokens
            certified = True
        certify_seconds = time.perf_counter() - proving
        read_seconds = 0.0 if given else prepared.read_seconds
        restored = graft.Restored(
            len(header.tokens), block.payload_bytes, prepared.nbytes, read_seconds, place_seconds
        )
        applied = prepared
        return Grafted(
            model=self.model,
            header=header,
            place=InContext(self, header, context, lambda: applied, restored),
            differences=differences,
            evidence=evidence,
            inexact=[],
            certified=certified,
            certify_seconds=certify_seconds,
        )

    # -- computing ---------------------------------------------------------------------------------

    def context(self, settings: Settings, n_tokens: int) -> llama.Context:
        """This Engine's context, empty, computing as `settings` say, with room for `n_tokens`."""
        held = self._context
        if (
            held is not None
            and held.settings.n_ctx >= n_tokens
            and replace(held.settings, n_ctx=0) == replace(settings, n_ctx=0)
        ):
            held.clear()
            return held
        self.drop_context()
        self._context = self.new_context(settings, n_tokens)
        return self._context

    def new_context(self, settings: Settings, n_tokens: int) -> llama.Context:
        """A context of the caller's own, to be closed before the Engine is."""
        n_ctx = max(
            -(-n_tokens // _CONTEXT_STEP) * _CONTEXT_STEP,
            settings.n_ctx if settings is self.settings else 0,
        )
        return llama.Context(self.model, replace(settings, n_ctx=n_ctx))

    def recipe(self, context: llama.Context) -> Recipe:
        return recipes.of_context(context, self.model_sha256)

    def continue_from(
        self,
        context: llama.Context,
        position: int,
        n_predict: int,
        sampling: Sampling | None = None,
        stop: frozenset[int] = frozenset(),
    ) -> Iterator[Step]:
        """Tokens sampled one by one after what `context` holds, the next at `position`."""
        sampler = llama.Sampler(self.model, sampling or Sampling())
        decoder = llama.Decoder(self.model)
        try:
            for left in range(min(n_predict, context.settings.n_ctx - position), 0, -1):
                token = sampler.sample(context)
                if token in stop or token in self.model.end_of_generation:
                    break
                yield Step(token, decoder.push(token))
                if left > 1:
                    context.decode([token], position)
                position += 1
            if rest := decoder.finish():
                yield Step(-1, rest)
        finally:
            sampler.close()

    def drop_context(self) -> None:
        """Free the context; the next use makes a new one. Grafts in it are gone."""
        if self._context is not None:
            self._context.close()
            self._context = None

    def close(self) -> None:
        self.drop_context()
        if self.staging is not None:
            self.staging.close()
        self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def settings_of(recipe: Any, where: Path, overrides: dict[str, Any]) -> Settings:
    """The context settings that a recipe names, with `overrides` on top.

    Raises:
        RecipeMismatch: the recipe is not one of this engine (for example a block of llama-server).
    """
    try:
        values = {name: recipe[name] for name in SETTINGS}
        wrong = [n for n, v in values.items() if type(v) is not type(getattr(Settings(), n))]
    except KeyError as error:
        wrong = [str(error)]
    if wrong or recipe.get("engine") != "embedded":
        raise RecipeMismatch(
            "the block's recipe is not one of the embedded engine",
            expected=", ".join(SETTINGS),
            got=f"engine {recipe.get('engine')!r}, without or with other types: "
            f"{', '.join(wrong) or 'none'}",
            where=where,
        )
    return Settings(n_ctx=256, **{**values, **overrides}).checked()
