"""`Backend`: what every engine that computes blocks does, and `Grafted`, a block that one has put
back.

There are two: `engine.embedded.Engine` has the weights in this process; `server.backend.
ServerBackend` asks a llama-server. Both prefill ids into the state of a block (`compute`) and put a
block back (`graft`). Everything else is a function over a Backend: `engine.save` stores texts.

Promises: one shape for what was computed and for what was grafted, whichever engine did it; where
an engine cannot give something, `Grafted` says so in words. Deliberately does not know: how an
engine holds a block. That is its `Place`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from taliesin.engine.graft import Restored
from taliesin.engine.llama import Model, Sampling, Settings
from taliesin.engine.recipe import Difference, Recipe
from taliesin.errors import UsageError
from taliesin.store.blockfile import BlockFile
from taliesin.store.header import BlockHeader, Certificate, Equals
from taliesin.store.library import Library, Policy

Align = Literal["auto", "aligned", "whole"]
EngineKind = Literal["embedded", "server"]

LONG = 4
"""A text of at least this many `n_ubatch` is cut at a multiple of it unless told otherwise."""

LOGITS = "every logits vector equal"
"""What "exact" says of an engine that gives logits."""


class Computed(NamedTuple):
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


class Asked(NamedTuple):
    """What the last question to a grafted block took: tokens of the block that were reused, tokens
    evaluated, the wall seconds of that, and of what was generated after it.
    """

    n_reused: int = 0
    n_prefilled: int = 0
    prefill_seconds: float = 0.0
    n_generated: int = 0
    generate_seconds: float = 0.0


class Place(Protocol):
    """Where an engine holds a grafted block: a context, or a slot of a server."""

    kind: EngineKind
    level: str
    """What "exact" says of an answer here."""

    @property
    def restored(self) -> Restored:
        """What putting the block there took."""

    @property
    def asked(self) -> Asked:
        """What the last question took."""

    @property
    def resident(self) -> bool:
        """Whether the place held the block all along, and nothing had to be put there."""

    def put_back(self) -> bool:
        """Make the place hold exactly the block again; False if its state had to be applied anew
        for that.
        """

    def prefill(self, query: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits after the block and `query` (ids), shape (n_vocab,) float32.

        Raises:
            UsageError: this engine gives no logits.
        """

    def generate(
        self, query: Sequence[int], n_predict: int, sampling: Sampling | None
    ) -> Iterator[Step]:
        """Tokens that follow the block and `query` (ids)."""


PlaceT_co = TypeVar("PlaceT_co", bound=Place, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Grafted(Generic[PlaceT_co]):
    """A block that an engine has put back and can be asked about.

    Asked several times, it first makes its place hold exactly the block again, whatever was done
    there meanwhile.

    `differences` and `inexact` are empty for an exact graft; with `inexact=True` they list which
    recipe fields differ and why the engine's own options are not exact ones, and `label` says so.
    `evidence` lists what differs and should not matter. `certified` tells whether the block's
    certificate was re-run here and held.
    """

    model: Model
    header: BlockHeader
    place: PlaceT_co
    differences: list[Difference]
    evidence: list[Difference]
    inexact: list[str]
    certified: bool
    certify_seconds: float

    @property
    def restored(self) -> Restored:
        """What putting the block back took."""
        return self.place.restored

    @property
    def exact(self) -> bool:
        """Whether what is computed after it may be called exact, at the place's level."""
        return not (self.differences or self.inexact)

    @property
    def label(self) -> str:
        """What the result may be called."""
        if not self.exact:
            return "inexact: " + "; ".join([*map(str, self.differences), *self.inexact])
        level = "" if self.place.level == LOGITS else f"; level: {self.place.level}"
        if self.place.kind == "embedded" and self.header.recipe.get("engine") == "llama-server":
            return (
                "exact: same recipe, computed by llama-server of the same build; "
                "no certificate of logits"
            )
        if self.place.kind == "embedded" and self.evidence:
            return "exact: same recipe, certificate re-checked here"
        return "exact: same recipe" + (", certificate re-checked" if self.certified else "") + level

    def query(self, question: str) -> list[int]:
        """Ids that follow the block for a question: the block's tail, the question, and the chat
        template's end.
        """
        return [
            *self.header.tail.tolist(),
            *self.model.tokenize(question, special=False),
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

    def put_back(self) -> bool:
        """See `Place.put_back`."""
        return self.place.put_back()

    def prefill(self, query: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits after the block and `query` (ids), shape (n_vocab,) float32. Puts the block back
        first.

        Raises:
            DecodeError: `query` is empty: at least one token must be computed after a graft.
            UsageError: the block is on a server, which gives no logits.
        """
        return self.place.prefill(query)

    def generate(
        self, question: str, n_predict: int = 128, sampling: Sampling | None = None
    ) -> Iterator[Step]:
        """Tokens that answer `question`, until a stop token, `n_predict` or the context's end. On a
        server the answer comes in one piece, as the text of its last token.
        """
        return self.place.generate(self.query(question), n_predict, sampling)


class Backend(Protocol):
    """An engine that computes blocks and puts them back."""

    kind: EngineKind
    model: Model
    model_sha256: str
    settings: Settings
    gpu_layers: int

    def compute(
        self, tokens: Sequence[int], *, align: Align = "auto", settings: Settings | None = None
    ) -> Computed:
        """Prefill `tokens` from position 0 under `settings` (the backend's own if not given); cut
        as in `save.save`.

        Raises:
            UsageError: "aligned", and there are fewer tokens than n_ubatch.
            RecipeMismatch: this engine computes nothing exact, or not under those settings.
            FormatError: the state is not one that could be put back.
        """

    def graft(
        self,
        block: BlockFile,
        *,
        library: Library | None = None,
        policy: Policy = "once",
        inexact: bool = False,
        certify: bool = False,
    ) -> Grafted[Place]:
        """Put a block back.

        Raises:
            RecipeMismatch: this engine would not have computed the block.
            StoreDamaged, FormatError: the block's bytes; raised before the engine is touched.
            CertificateMismatch: same recipe, other numbers.
        """

    def close(self) -> None:
        """Free the model. What was grafted is gone."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def cut_at(n_tokens: int, align: Align, n_ubatch: int) -> int:
    """How many of a text's first `n_tokens` ids make its block; see `save.save`.

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
