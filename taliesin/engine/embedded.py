"""`Engine`: one loaded model that saves texts as blocks, grafts blocks, and generates after them.

The Python API behind the command line. An Engine keeps one context and empties it between uses
(measured equal to a new one); a graft is therefore valid until the Engine is used for something
else.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from taliesin.engine import certificate, graft, llama, prompt
from taliesin.engine import recipe as fingerprint
from taliesin.engine.llama import Sampling, Settings
from taliesin.engine.recipe import Difference, Recipe
from taliesin.engine.staging import Staging
from taliesin.errors import DecodeError, RecipeMismatch, UsageError
from taliesin.host import clock
from taliesin.host.machine import usable_cores
from taliesin.models import resolve as models
from taliesin.state import placement, seqstate
from taliesin.store.blockfile import BlockFile
from taliesin.store.header import BlockHeader, Certificate, Equals, Part, Source
from taliesin.store.library import BlockInfo, Library, Policy

Align = Literal["auto", "aligned", "whole"]

LONG = 4
"""A text of at least this many `n_ubatch` is cut at a multiple of it unless told otherwise."""

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
_RESERVE = 1024  # tokens of the model's context kept free beside a block by default


class Saved(NamedTuple):
    """One block that `Engine.save` stored. Seconds are wall time; `save_seconds` is writing to
    disk.
    """

    info: BlockInfo
    header: BlockHeader
    prefill_seconds: float
    state_seconds: float
    save_seconds: float


class Prefilled(NamedTuple):
    """A block that was computed and not stored yet: what its header says, and `state`, its payload.

    tokens: (n_tokens,) int32; tail: (n_tail,) int32; seconds are wall time; extra: more keys of the
    meta object.
    """

    tokens: npt.NDArray[np.int32]
    tail: npt.NDArray[np.int32]
    equals: Equals
    recipe: Recipe
    certificate: Certificate | None
    state: memoryview
    prefill_seconds: float
    state_seconds: float
    extra: Mapping[str, Any] = MappingProxyType({})


class Step(NamedTuple):
    """One generated token, and the text it completes (empty inside a character)."""

    token: int
    text: str


@dataclass
class Grafted:
    """A block in a context: the Engine's own, or one that was given for it.

    Asked several times, it first makes the context hold exactly the block again, whatever was done
    in it meanwhile.

    `differences` is empty for an exact graft; with `inexact=True` it lists what differs and `label`
    says so. `certified` tells whether the block's certificate was re-run here and held.
    """

    engine: Engine
    header: BlockHeader
    restored: graft.Restored
    differences: list[Difference]
    evidence: list[Difference]
    certified: bool
    certify_seconds: float
    source: Callable[[], graft.Prepared]
    context: llama.Context
    prefill_seconds: float = 0.0
    prompt_tokens: int = 0

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

    @property
    def label(self) -> str:
        """What the result may be called."""
        if self.differences:
            return "inexact: " + "; ".join(map(str, self.differences))
        if self.header.recipe.get("engine") == "llama-server":
            return (
                "exact: same recipe, computed by llama-server of the same build; "
                "no certificate of logits"
            )
        if self.evidence:
            return "exact: same recipe, certificate re-checked here"
        return "exact: same recipe" + (", certificate re-checked" if self.certified else "")

    def query(self, question: str) -> list[int]:
        """Ids that follow the block for a question: the block's tail, the question, and the chat
        template's end.
        """
        return [
            *self.header.tail.tolist(),
            *self.engine.model.tokenize(question, special=False),
            *self.header.after_query,
        ]

    def remainder(self, prompt: Sequence[int]) -> list[int]:
        """Ids of a whole prompt that follow the block, for `prefill`.

        Raises:
            UsageError: the prompt does not begin with the block's ids, or is no longer than they
                are. A block that was routed wrongly is stopped here: what it holds was never in
                that prompt.
        """
        tokens = self.header.tokens
        n = len(tokens)
        if len(prompt) <= n or not np.array_equal(np.asarray(prompt[:n], np.int64), tokens):
            common = next(
                (i for i, (a, b) in enumerate(zip(prompt, tokens, strict=False)) if a != b),
                min(len(prompt), n),
            )
            raise UsageError(
                "the block is no prefix of this prompt",
                expected=f"a prompt that begins with the block's {n} tokens and goes on",
                got=f"{len(prompt)} tokens, the first {common} equal",
                where=self.header.title,
            )
        return list(prompt[n:])

    def prefill(self, query: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits after the block and `query` (ids), shape (n_vocab,) float32. Puts the block back
        first (`put_back`).

        Raises:
            DecodeError: `query` is empty: at least one token must be computed after a graft.
        """
        if not query:
            raise DecodeError(
                "the prompt adds no token after the block", expected="at least one", got="none"
            )
        self.put_back()
        started = time.perf_counter()
        logits = self.context.decode(query, len(self.header.tokens))
        assert logits is not None
        self.prefill_seconds = time.perf_counter() - started
        self.prompt_tokens = len(query)
        return logits

    def generate(
        self, question: str, n_predict: int = 128, sampling: Sampling | None = None
    ) -> Iterator[Step]:
        """Tokens that answer `question`, until a stop token, `n_predict` or the context's end."""
        query = self.query(question)
        self.prefill(query)
        position = len(self.header.tokens) + len(query)
        yield from self.engine.continue_from(
            self.context, position, n_predict, sampling, frozenset(self.header.stop)
        )


@dataclass
class Engine:
    """A model ready to save and graft.

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
    staging: Staging | None = field(init=False, default=None)
    _context: llama.Context | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.gpu_layers:
            self.staging = Staging()
        path = models.resolve(self.model_name)
        self.model_sha256 = models.model_sha256(path)
        self.model = llama.Model(path, self.gpu_layers)

    # -- saving ------------------------------------------------------------------------------------

    def save(
        self,
        library: Library,
        text: str,
        name: str,
        *,
        align: Align = "auto",
        block_tokens: int | None = None,
        raw: bool = False,
        title: str | None = None,
        replace_existing: bool = False,
        on_block: Callable[[int, int], None] = lambda _done, _count: None,
    ) -> list[Saved]:
        """Store `text` as one block under `name`, or as `name#1`, `name#2`, ... where it does not
        fit in one.

        `align` "auto" cuts texts of at least `LONG` x n_ubatch tokens at the last multiple of
        n_ubatch, so that the graft equals the one-shot prompt; the ids behind the cut are kept as
        `tail` and prefilled with the query. Other texts are stored whole.

        Raises:
            UsageError: empty text, a name that is taken, or a block size out of range.
        """
        if not text.strip():
            raise UsageError("nothing to save", expected="a text", got="an empty one")
        shape = prompt.frame(self.model, raw=raw)
        longest = max(self.model.n_ctx_train - _RESERVE, 512) if self.model.n_ctx_train else 1 << 20
        limit = longest if block_tokens is None else block_tokens
        smallest = len(shape.before) + len(shape.between) + 16
        if not smallest <= limit <= self.model.n_ctx_train:
            raise UsageError(
                "the block size is out of range",
                expected=f"{smallest}..{self.model.n_ctx_train} tokens",
                got=limit,
            )
        if align == "aligned" or (align == "auto" and limit >= LONG * self.settings.n_ubatch):
            limit = max(limit - limit % self.settings.n_ubatch, smallest)
        parts = prompt.document_parts(self.model, shape, text, limit)
        data = text.encode("utf-8", "surrogatepass")
        source = Source(hashlib.sha256(data).hexdigest(), len(data))
        titles = title or next(
            (line.strip()[:80] for line in text.splitlines() if line.strip()), name
        )
        saved = []
        for index, ids in enumerate(parts):
            is_only = len(parts) == 1
            body = ids[len(shape.before) : len(ids) - len(shape.between)]
            part_text = text if is_only else self.model.text(body)
            saved.append(
                self.save_tokens(
                    library,
                    ids,
                    name if is_only else f"{name}#{index + 1}",
                    align=align,
                    shape=shape,
                    title=titles,
                    text=part_text,
                    part=Part(index, len(parts)),
                    source=source,
                    replace_existing=replace_existing,
                )
            )
            on_block(index + 1, len(parts))
        return saved

    def save_tokens(
        self,
        library: Library,
        tokens: Sequence[int],
        name: str,
        *,
        align: Align = "auto",
        shape: prompt.Frame | None = None,
        title: str = "",
        text: str = "",
        part: Part = Part(0, 1),
        source: Source | None = None,
        replace_existing: bool = False,
    ) -> Saved:
        """Prefill `tokens` from position 0 and store them as one block."""
        block = self.compute(tokens, align=align)
        header = BlockHeader(
            title=title or name,
            created=clock.now(),
            recipe=block.recipe,
            equals=block.equals,
            tokens=block.tokens,
            tail=block.tail,
            text=text.encode("utf-8", "replace").decode("utf-8"),
            certificate=block.certificate,
            after_query=shape.after if shape else (),
            stop=shape.stop if shape else tuple(sorted(self.model.end_of_generation)),
            part=part,
            source=source,
            extra=MappingProxyType({"frame": shape.kind if shape else "tokens", **block.extra}),
        )
        writing = time.perf_counter()
        info = library.put(name, header, block.state, replace=replace_existing)
        done = time.perf_counter()
        return Saved(info, header, block.prefill_seconds, block.state_seconds, done - writing)

    def compute(
        self, tokens: Sequence[int], *, align: Align = "auto", settings: Settings | None = None
    ) -> Prefilled:
        """Prefill `tokens` from position 0 under `settings` (the Engine's own if not given); cut as
        in `save`.

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
        return Prefilled(
            tokens=ids[:cut],
            tail=ids[cut:],
            equals=equality(cut, settings.n_ubatch),
            recipe=self.recipe(context),
            certificate=certificate.take(context, ids[:cut]),
            state=state,
            prefill_seconds=prefilled - started,
            state_seconds=stated - prefilled,
        )

    # -- grafting ----------------------------------------------------------------------------------

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
    ) -> Grafted:
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
            recipe = fingerprint.of_embedded_twin(recipe)
        settings = settings_of(recipe, block.path, overrides or {})
        # The model first: another one would need another context.
        if recipe.get("model_sha256") != self.model_sha256:
            fingerprint.require(
                {"model_sha256": recipe.get("model_sha256")},
                {"model_sha256": self.model_sha256},
                where=block.path,
            )
        if context is None:
            context = self.context(
                settings, len(header.tokens) + max(n_extra, certificate.POSITIONS)
            )
        here = self.recipe(context)
        differences = fingerprint.require(recipe, here, where=block.path, inexact=inexact)
        evidence = fingerprint.evidence_differences(recipe, here)
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
            self,
            header,
            restored,
            differences,
            evidence,
            certified,
            certify_seconds,
            lambda: applied,
            context,
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
        return fingerprint.of_context(context, self.model_sha256)

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


def cut_at(n_tokens: int, align: Align, n_ubatch: int) -> int:
    """How many of a text's first `n_tokens` ids make its block; see `Engine.save`.

    Raises:
        UsageError: "aligned", and there are fewer than `n_ubatch`.
    """
    whole = align == "whole" or (align == "auto" and n_tokens < LONG * n_ubatch)
    cut = n_tokens if whole else n_tokens - n_tokens % n_ubatch
    if not cut:
        raise UsageError(
            "the text is too short to be aligned",
            expected=f"at least {n_ubatch} tokens",
            got=n_tokens,
            hint="--whole, or a smaller --ubatch",
        )
    return cut


def equality(n_tokens: int, n_ubatch: int) -> Equals:
    """What a graft of a block of `n_tokens` equals."""
    return "block-then-query" if n_tokens % n_ubatch else "one-shot"


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
