"""What is asked of a model, and what comes back: the one door that solve, bank, recall, transfer,
livebench and the rewrite go through.

A `Request` is what stands before a question (a shared prefix, a block of a library, or nothing),
the question, how to sample, and where to stop. An `Answerer` takes any number of requests and
yields a `Completion` for each as it finishes; two samples of one question are two requests that
differ in their seed. An answerer that works on one request at a time yields them in order; one that
works on many may not, so a completion names its request.

A request that does not fit is a completion with an `error`: the others go on. `one` raises it.
Deliberately does not know: problems, right answers, how often it is asked, and what becomes of a
text. Nothing here imports an engine or an HTTP client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from galahad.measure.energy import Reading
from taliesin.errors import ContextFull
from taliesin.host.records import Record

if TYPE_CHECKING:
    from taliesin.store.blockfile import BlockFile
    from taliesin.store.library import Library

Finish = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen. `temperature` 0 is greedy; `top_k`, `top_p` and `min_p` are the
    engine's own where None; `grammar` is GBNF (root rule `root`) that the answer
    keeps to.
    """

    temperature: float = 0.0
    seed: int = 0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    grammar: str | None = None


GREEDY = Sampling()


class SharedPrefix(NamedTuple):
    """A text that many questions share, by the name under which `prepare` took it."""

    name: str


class BlockPrefix(NamedTuple):
    """A block of a library, by its name there."""

    library: Library
    name: str


Prefix = SharedPrefix | BlockPrefix


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question to a model.

    prefix: what stands before the question; None: nothing but the model's own frame. max_tokens:
    generated tokens at most. opening: how the answer begins, put into the model's mouth and part of
    the text. end: a text that ends the answer after the opening. An answerer that cannot do either
    leaves both out, and the text is what the model made of it.
    """

    question: str
    max_tokens: int
    prefix: Prefix | None = None
    sampling: Sampling = GREEDY
    opening: str = ""
    end: str = ""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The text that answers a request, what it cost and what made it.

    `finish` is "length" where the text was cut. `n_reused` prompt tokens came out of a stored
    state, `n_prefilled` were computed, `n_out` were generated, without the one that stops.
    `reuse_seconds` is putting the state back. A server gives no phases: its `decode_seconds` is
    the whole request. `label` says how the answer was computed, such as "embedded, grafted".
    `recipe` is taliesin's recipe of the computation, empty for a server; `energy` is a reading of
    this machine's counter, None where another machine computed. `error`: the prompt did not fit,
    and there is no text.
    """

    request: Request
    text: str
    finish: Finish
    n_reused: int = 0
    n_prefilled: int = 0
    n_out: int = 0
    reuse_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    label: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    energy: Reading | None = None
    error: ContextFull | None = None


class SavedPrefix(Record):
    """A prefix that was stored: its length, and what its prefill and its writing took."""

    n_tokens: int
    prefill_seconds: float
    save_seconds: float
    block_id: str


class SavedBlock(Record):
    """A block in a library: what it is called, which model computed it, and its sizes. The sizes of
    old entries may be absent.
    """

    name: str
    id: str
    model: str
    model_sha256: str
    n_tokens: int
    file_bytes: int = 0
    prefill_seconds: float = 0.0
    save_seconds: float = 0.0


class Answerer(Protocol):
    """A source of completions."""

    def identity(self) -> dict[str, object]:
        """What decides which texts come out, JSON-ready: two runs are comparable only where it is
        equal.
        """

    def evidence(self) -> dict[str, object]:
        """Facts about this machine and this build, JSON-ready."""

    def prepare(self, prefixes: Mapping[str, str]) -> dict[str, SavedPrefix]:
        """Take the shared prefixes by name, before the first request; those that were saved as
        blocks.
        """

    def complete(self, requests: Sequence[Request]) -> Iterator[Completion]:
        """A completion for each request, as it finishes. Nothing is asked before the first `next`.

        Raises:
            UsageError: a request that this answerer cannot take. ServerError: no answer from the
            server. StoreMissing, StoreDamaged, RecipeMismatch, BankError: the block.
        """

    def watch(self, on_token: Callable[[], None]) -> None:
        """Have `on_token` called after every token (a server: once with each reply)."""

    def close(self) -> None: ...


class BlockAnswerer(Answerer, Protocol):
    """An answerer that also computes blocks, which its requests may name. No server is one."""

    @property
    def model_sha256(self) -> str: ...

    def save(self, library: Library, name: str, text: str, title: str) -> SavedBlock:
        """Store `text` as this model's block under `name`, in place of one that is there."""

    def certify(self, block: BlockFile) -> None:
        """Recompute the block's certificate here.

        Raises:
            CertificateMismatch: other numbers come out. RecipeMismatch: the block is another
            model's or another build's.
        """


def no_token() -> None:
    """Nobody watches."""


def one(answerer: Answerer, request: Request) -> Completion:
    """The completion of one request.

    Raises:
        ContextFull: the prompt does not fit. Otherwise as `Answerer.complete`.
    """
    [completion] = answerer.complete([request])
    if completion.error is not None:
        raise completion.error
    return completion


def in_order(answerer: Answerer, requests: Iterable[Request]) -> list[Completion]:
    """The completions in the order of their requests, whatever order they finish in. Raises as
    `one`.
    """
    listed = list(requests)
    places = {id(request): place for place, request in enumerate(listed)}
    completions: list[Completion | None] = [None] * len(listed)
    for completion in answerer.complete(listed):
        if completion.error is not None:
            raise completion.error
        completions[places[id(completion.request)]] = completion
    assert None not in completions, "a request without a completion"
    return [completion for completion in completions if completion is not None]
