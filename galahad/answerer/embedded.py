"""llama.cpp in this process, through taliesin: one request at a time.

A shared prefix is saved once as a KV block and grafted before every question; without grafts the
same ids are prefilled in the same two batches, so that the same seed gives the same text either
way. A block of a library is grafted for its request. Deliberately does not know: which block suits
a question.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from galahad.answerer.answerer import (
    BlockPrefix,
    Completion,
    Finish,
    Request,
    SavedBlock,
    SavedPrefix,
    SharedPrefix,
    no_token,
)
from galahad.measure import energy
from taliesin.errors import ContextFull, UsageError

if TYPE_CHECKING:
    from taliesin.engine.backend import Grafted
    from taliesin.engine.embedded import Engine, InContext
    from taliesin.engine.llama import Context, Settings
    from taliesin.engine.prompt import Frame
    from taliesin.store.blockfile import BlockFile
    from taliesin.store.library import Library

N_CTX = 8192


class _Start(NamedTuple):
    """A context that holds the first `position` tokens, and the batches of ids that follow, each
    prefilled on its own.
    """

    context: Context
    position: int
    batches: Sequence[Sequence[int]]
    reuse_seconds: float
    label: str


@dataclass(kw_only=True)
class Embedded:
    """One model, its context, and the shared prefixes.

    Args:
        model: a catalogue name or the path of a GGUF file.
        settings: how contexts compute.
        n_ctx: cells for prefix, question and answer together, at most what the model was trained
            on, whatever the request; None: as many as each request needs.
        prefixes: folder of a library for the blocks of the shared prefixes (made if it is not
            there); None: they are prefilled each time.

    Raises:
        ModelError, EngineUnavailable, UnsupportedModel: as `taliesin.engine.embedded.Engine`.
    """

    model: str
    settings: Settings
    gpu_layers: int = 0
    n_ctx: int | None = None
    prefixes: Path | None = None
    _engine: Engine = field(init=False)
    _frame: Frame = field(init=False)
    _counter: energy.Counter | None = field(init=False)
    _on_token: Callable[[], None] = field(init=False, default_factory=lambda: no_token)
    _library: Library | None = field(init=False, default=None)
    _grafted: dict[str, Grafted[InContext]] = field(init=False, default_factory=dict)
    _ids: dict[str, list[int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        from taliesin.engine import prompt
        from taliesin.engine.embedded import Engine

        if self.n_ctx is not None:
            self.settings = replace(self.settings, n_ctx=self.n_ctx)
        self._engine = Engine(self.model, self.settings, self.gpu_layers)
        trained = self._engine.model.n_ctx_train
        if self.n_ctx is not None and trained and trained < self.n_ctx:
            self.n_ctx = trained
            self.settings = self._engine.settings = replace(self.settings, n_ctx=trained)
        self._frame = prompt.frame(self._engine.model)
        self._counter = energy.find()

    # -- what it is --------------------------------------------------------------------------------

    @property
    def model_sha256(self) -> str:
        return self._engine.model_sha256

    def identity(self) -> dict[str, object]:
        return {
            "engine": "embedded",
            "model": Path(self.model).name,
            "model_sha256": self.model_sha256,
            **({} if self.n_ctx is None else {"n_ctx": self.n_ctx}),
        }

    def evidence(self) -> dict[str, object]:
        return {"recipe": self._engine.recipe(self._empty(0))}

    def watch(self, on_token: Callable[[], None]) -> None:
        self._on_token = on_token

    def close(self) -> None:
        self._engine.close()
        if self._library is not None:
            self._library.close()

    # -- blocks ------------------------------------------------------------------------------------

    def prepare(self, prefixes: Mapping[str, str]) -> dict[str, SavedPrefix]:
        from taliesin.engine import prompt
        from taliesin.engine.save import save as save_text
        from taliesin.store.library import Library

        if self.prefixes is None:
            model = self._engine.model
            longest = self.n_ctx or model.n_ctx_train or N_CTX
            self._ids = {
                name: prompt.document_parts(model, self._frame, text, longest)[0]
                for name, text in prefixes.items()
            }
            return {}
        self._library = Library(self.prefixes)
        saved_prefixes = {}
        for name, text in prefixes.items():
            # Saved anew at each start: prefilling some hundred tokens costs less than the question
            # whether an older block fits.
            [saved] = save_text(
                self._engine,
                self._library,
                text,
                _shared(name),
                align="whole",
                replace_existing=True,
            )
            saved_prefixes[name] = SavedPrefix(
                n_tokens=len(saved.header.tokens),
                prefill_seconds=saved.prefill_seconds,
                save_seconds=saved.save_seconds,
                block_id=saved.info.id,
            )
        # After the last save: a save empties the context that a graft lies in.
        for name in prefixes:
            self._grafted[name] = self._graft_shared(name, saved_prefixes[name].n_tokens)
        return saved_prefixes

    def _graft_shared(self, name: str, n_tokens: int) -> Grafted[InContext]:
        assert self._library is not None
        room = (self.n_ctx or N_CTX) - n_tokens
        with self._library.open(_shared(name)) as block:
            return self._engine.graft(block, library=self._library, n_extra=room)

    def save(self, library: Library, name: str, text: str, title: str) -> SavedBlock:
        from taliesin.engine.save import save as save_text

        # Whole: the question follows the block's last token, whatever its length.
        [saved] = save_text(
            self._engine, library, text, name, align="whole", title=title, replace_existing=True
        )
        return SavedBlock(
            name=name,
            id=saved.info.id,
            model=Path(self.model).name,
            model_sha256=self.model_sha256,
            n_tokens=len(saved.header.tokens),
            file_bytes=saved.info.file_bytes,
            prefill_seconds=saved.prefill_seconds,
            save_seconds=saved.save_seconds,
        )

    def certify(self, block: BlockFile) -> None:
        self._engine.graft(block, certify=True)

    # -- answers -----------------------------------------------------------------------------------

    def complete(self, requests: Sequence[Request]) -> Iterator[Completion]:
        for request in requests:
            try:
                with energy.Meter(self._counter) as meter:
                    completion = self._generate(request, self._start(request))
                yield replace(completion, energy=meter.reading())
            except ContextFull as error:
                yield Completion(request=request, text="", finish="stop", error=error)

    def _start(self, request: Request) -> _Start:
        """Where the answer begins. The last batch ends with the ids of the opening."""
        model = self._engine.model
        query = [
            *model.tokenize(request.question, special=False),
            *self._frame.after,
            *model.tokenize(request.opening, special=False),
        ]
        match request.prefix:
            case None:
                ids = [*self._frame.before, *query]
                context = self._empty(len(ids) + request.max_tokens)
                return _Start(context, 0, [ids], 0.0, "embedded, prefilled")
            case BlockPrefix(library, name):
                return self._behind_block(library, name, query, request.max_tokens)
            case SharedPrefix(name):
                return self._behind_shared(name, query, request.max_tokens)

    def _behind_block(
        self, library: Library, name: str, query: Sequence[int], max_tokens: int
    ) -> _Start:
        with library.open(name) as block:
            grafted = self._engine.graft(block, library=library, n_extra=len(query) + max_tokens)
        seconds = grafted.restored.read_seconds + grafted.restored.place_seconds
        ids = [*grafted.header.tail.tolist(), *query]
        return _Start(
            grafted.place.context, len(grafted.header.tokens), [ids], seconds, "embedded, grafted"
        )

    def _behind_shared(self, name: str, query: Sequence[int], max_tokens: int) -> _Start:
        if name not in self._grafted and name not in self._ids:
            known = ", ".join([*self._grafted, *self._ids]) or "none was prepared"
            raise UsageError("no shared prefix of this name", expected=known, got=name)
        if name in self._ids:
            # Two batches, as a graft has: the same sums, so the same text.
            ids = self._ids[name]
            context = self._empty(len(ids) + len(query) + max_tokens)
            return _Start(context, 0, [ids, query], 0.0, "embedded, prefilled")
        grafted = self._grafted[name]
        n_tokens = len(grafted.header.tokens)
        if grafted.place.context.closed:  # another request needed a context of another size
            grafted = self._grafted[name] = self._graft_shared(name, n_tokens)
        started = time.perf_counter()
        grafted.put_back()
        seconds = time.perf_counter() - started
        return _Start(grafted.place.context, n_tokens, [query], seconds, "embedded, grafted")

    def _empty(self, n_tokens: int) -> Context:
        """A context that holds nothing, for a prompt and an answer of `n_tokens` in all."""
        return self._engine.context(self._engine.settings, self.n_ctx or n_tokens)

    def _generate(self, request: Request, start: _Start) -> Completion:
        from taliesin.engine import llama

        engine, context, position = self._engine, start.context, start.position
        started = time.perf_counter()
        for number, ids in enumerate(start.batches, 1):
            context.decode(ids, position, logits=number == len(start.batches))
            position += len(ids)
        prefilled = time.perf_counter()
        text, n_out = "", 0
        finish: Finish = "stop"
        # A context may be longer than what this answerer was told to use of it.
        room = min(request.max_tokens, (self.n_ctx or context.settings.n_ctx) - position)
        given = {name: value for name, value in vars(request.sampling).items() if value is not None}
        sampling = llama.Sampling(**given)
        stop = frozenset(self._frame.stop)
        for step in engine.continue_from(context, position, room, sampling, stop):
            text += step.text
            n_out += step.token >= 0
            self._on_token()
            if request.end and request.end in text:
                break
        else:
            finish = "length" if n_out >= room else "stop"
        return Completion(
            request=request,
            text=request.opening + text,
            finish=finish,
            n_reused=start.position,
            n_prefilled=position - start.position,
            n_out=n_out,
            reuse_seconds=start.reuse_seconds,
            prefill_seconds=prefilled - started,
            decode_seconds=time.perf_counter() - prefilled,
            label=start.label,
            recipe=engine.recipe(context),
        )


def _shared(name: str) -> str:
    """What the block of a shared prefix is called in its library."""
    return f"prefix {name}"
