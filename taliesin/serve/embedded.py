"""The embedded engine behind the front: one context, one request at a time, no other process.

A prompt is tokenised as llama-server does: the chat template's whole text, control tokens of the
template and of the messages alike. Then `engine.prefill.PrefixCache` makes the context hold it,
from whatever an earlier prompt began with, and tokens are sampled one by one. The longest block of
the library that begins the prompt is used too, where the answer is the same with it as without: a
block that ends on a multiple of n_ubatch, of this engine's recipe.

Promises: an answer depends on the request and the recipe alone, not on what was asked before. A
client that leaves ends the computation between two nodes of llama.cpp's graph (on a GPU between two
batches). Deliberately does not know: HTTP.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taliesin.engine import llama, prompt
from taliesin.engine.llama import Interrupted, Sampling
from taliesin.engine.prefill import Place, Prefilled, PrefixCache, Stopped
from taliesin.errors import ContextFull, ModelError, UsageError
from taliesin.serve import grammar
from taliesin.serve.answer import Form, Scored, Step, Stops
from taliesin.serve.blocks import Blocks
from taliesin.serve.plan import Begun, Cancellation, Count, Ended, Event, Job, Left, Part, Usage
from taliesin.serve.requests import ChatRequest, CompletionRequest, Request, text_of
from taliesin.store.blockfile import BlockFile
from taliesin.store.header import BlockHeader
from taliesin.store.library import Library
from taliesin.store.pieces import PieceStore

# Where a request says nothing: llama-server's own defaults.
TEMPERATURE = 0.8
_SEEDS = 1 << 32


class Prompt(NamedTuple):
    """What is to be answered. block: the one that was named; end: ids that end the answer."""

    ids: list[int]
    block: str | None = None
    end: frozenset[int] = frozenset()


class Known(NamedTuple):
    """A block of the library whose state was taken into the cache."""

    block_id: str
    header: BlockHeader


class Generated(NamedTuple):
    """Some text of an answer: the tokens that made it, and at the end why it ended."""

    text: str
    steps: list[Step]
    n_tokens: int
    reason: str = ""


@dataclass(frozen=True)
class Wanted:
    """How an answer is sampled and told."""

    sampling: Sampling
    most: int
    n: int
    stops: list[str]
    top: int | None
    stream: bool
    counts: bool
    fresh: bool


class Embedded:
    """An `Engine` as a `plan.Service`.

    Args:
        cache: what prompts are prefilled in, of the same engine; its `n_ctx` is the room for prompt
            and answer together.
        library: whose blocks are used too; None for the user's own. It need not exist.
    """

    turns = 1

    def __init__(self, cache: PrefixCache, library: Path | None, model_id: str) -> None:
        self.cache, self.engine, self.model_id = cache, cache.engine, model_id
        self.context = cache.context
        self._interrupt = llama.Interrupt()
        self._computing: Cancellation | None = None
        self._turn = threading.Lock()  # guards the two
        self.context.obey(self._interrupt)
        self.blocks: Blocks[Known] = Blocks(library, self._require_usable, self._adopt, kept=8)

    def counts(self) -> list[Count]:
        """See `plan.Service.counts`."""
        memory, store = self.cache.memory, self.cache.store
        found = [
            *(
                Count(f"cache_{place}_tokens_total", f"Prompt tokens {where}.", hits)
                for place, where in _SOURCES.items()
                for hits in [self.cache.hits[place]]
            ),
            Count("cache_memory_bytes", "Pieces in memory.", memory.used_bytes, gauge=True),
            Count("cache_memory_evicted_total", "Pieces evicted from memory.", memory.evicted),
        ]
        if isinstance(store, PieceStore):
            found += [
                Count("cache_disk_bytes", "Pieces on the disk.", store.used_bytes, gauge=True),
                Count("cache_disk_evicted_total", "Pieces evicted from the disk.", store.evicted),
                Count("cache_written_bytes_total", "Written to the disk.", store.written_bytes),
                Count("cache_left_out_total", "Pieces not written (budget).", store.left_out),
                Count(
                    "cache_waiting_bytes", "Wait to be written.", store.waiting_bytes, gauge=True
                ),
            ]
        return found

    # -- what is asked -----------------------------------------------------------------------------

    def prepare(self, request: Request) -> Job:
        """See `plan.Service.prepare`."""
        fields = request.fields
        for name in sorted(request.passed):
            raise _not_here(name)
        if isinstance(fields, ChatRequest):
            if fields.tools and fields.tool_choice != "none":
                raise _not_here("tools")
            if fields.tool_choice not in (None, "none", "auto"):
                raise _not_here("tool_choice")
        wanted = self._wanted(fields)
        asked = self._prompt(fields)
        form = Form(isinstance(fields, ChatRequest), self.model_id)

        def job(cancellation: Cancellation) -> Iterator[Event]:
            with self._turn:
                self._interrupt.clear()
                self._computing = cancellation
            cancellation.on_cancel(lambda: self._stop(cancellation))
            try:
                yield from self._answer(asked, wanted, form, cancellation)
            except (Interrupted, Stopped):
                raise Left from None
            finally:
                with self._turn:
                    self._interrupt.clear()
                    self._computing = None
                self.cache.commit()  # behind the answer

        return job

    def _stop(self, cancellation: Cancellation) -> None:
        """End the computation of a request, if it is the one that computes: the front also cancels
        what has ended, and by then another request may have the context.
        """
        with self._turn:
            if self._computing is cancellation:
                self._interrupt.set()

    def _wanted(self, fields: ChatRequest | CompletionRequest) -> Wanted:
        def given(value: Any, otherwise: Any) -> Any:
            return otherwise if value is None else value

        default = Sampling()
        seed = fields.seed if fields.seed is not None and fields.seed >= 0 else None
        top: int | None = None
        if isinstance(fields, ChatRequest):
            if fields.logprobs:
                top = fields.top_logprobs or 0
        else:
            top = fields.logprobs
        sampling = Sampling(
            temperature=given(fields.temperature, TEMPERATURE),
            top_k=given(fields.top_k, default.top_k),
            top_p=given(fields.top_p, default.top_p),
            min_p=given(fields.min_p, default.min_p),
            seed=given(seed, secrets.randbelow(_SEEDS)) % _SEEDS,
            grammar=_grammar(fields),
            repeat_penalty=fields.repeat_penalty,
            frequency_penalty=fields.frequency_penalty,
            presence_penalty=fields.presence_penalty,
            logit_bias=self._biases(fields.logit_bias),
        )
        llama.Sampler(self.engine.model, sampling).close()  # a grammar that does not parse
        return Wanted(
            sampling,
            most=self.context.settings.n_ctx
            if fields.max_tokens in (None, -1)
            else int(fields.max_tokens or 0),
            n=fields.n,
            stops=fields.stops,
            top=top,
            stream=fields.stream,
            counts=fields.stream_options.include_usage,
            fresh=not fields.cache_prompt,
        )

    def _biases(self, biases: dict[str, bool | float]) -> tuple[tuple[int, float], ...]:
        """OpenAI's map of token ids to biases; `false` bans a token, as with llama-server."""
        found = []
        for key, bias in biases.items():
            if not (key.isascii() and key.isdigit() and int(key) < self.engine.model.n_vocab):
                raise UsageError(
                    "field logit_bias of the request names no token",
                    expected=f"an id in 0..{self.engine.model.n_vocab - 1}",
                    got=key[:40],
                )
            if bias is True:
                raise UsageError("field logit_bias of the request holds true", expected="a number")
            found.append((int(key), -float("inf") if bias is False else float(bias)))
        return tuple(found)

    def _prompt(self, fields: ChatRequest | CompletionRequest) -> Prompt:
        if fields.taliesin_block is not None:
            return Prompt(self._tokens(self._question(fields)), fields.taliesin_block)
        if isinstance(fields, ChatRequest):
            ids = self._joined(self._rendered(fields.messages))
        elif isinstance(fields.prompt, str):
            ids = self._joined(fields.prompt)
        else:
            ids = fields.prompt
            if max(ids) >= self.engine.model.n_vocab:
                raise UsageError(
                    "field prompt of the request holds an id that is no token",
                    expected=f"0..{self.engine.model.n_vocab - 1}",
                    got=max(ids),
                )
        if not ids:
            raise UsageError("the prompt is empty", expected="at least one token")
        self._require_room(len(ids))
        return Prompt(ids)

    def _question(self, fields: ChatRequest | CompletionRequest) -> str:
        """The one question of a request that names a block."""
        if isinstance(fields, ChatRequest):
            if len(fields.messages) != 1 or fields.messages[0].get("role") != "user":
                raise UsageError(
                    "field messages of the request: a named block takes one question",
                    expected="one user message",
                    hint="the block is the text; the question follows it",
                )
            return text_of(fields.messages[0].get("content"), "messages[0].content")
        if not isinstance(fields.prompt, str):
            raise UsageError(
                "field prompt of the request: a named block takes one question",
                expected="a text",
                hint="the block is the text; the question follows it",
            )
        return fields.prompt

    def _tokens(self, text: str) -> list[int]:
        return self.engine.model.tokenize(text, special=False)

    def _joined(self, text: str) -> list[int]:
        """A whole prompt's ids, with BOS where the model wants one."""
        model = self.engine.model
        ids = model.tokenize(text, special=True)
        if model.adds_bos and model.bos >= 0 and ids[:1] != [model.bos]:
            return [model.bos, *ids]
        return ids

    def _rendered(self, messages: Sequence[dict[str, Any]]) -> str:
        """The chat template's text of the messages."""
        model = self.engine.model
        template = model.chat_template()
        if template is None:
            raise UsageError(
                "the model has no chat template", where=model.path, hint="/v1/completions"
            )
        plain = []
        for index, message in enumerate(messages):
            if not isinstance(message.get("role"), str):
                raise UsageError(
                    f"field messages[{index}].role of the request is no text",
                    got=type(message.get("role")).__name__,
                )
            content = message.get("content")
            text = "" if content is None else text_of(content, f"messages[{index}].content")
            plain.append({**message, "content": text})
        try:
            return prompt.render(template, plain, model)
        except ModelError as error:  # its own words: roles must alternate, and the like
            raise UsageError(
                "the model's chat template refuses the messages", got=error.got
            ) from error

    def _require_room(self, n_tokens: int) -> None:
        n_ctx = self.context.settings.n_ctx
        if n_tokens >= n_ctx:
            raise ContextFull(
                "the prompt does not fit in the context",
                expected=f"fewer than {n_ctx} tokens",
                got=n_tokens,
                hint="taliesin serve with a larger --ctx",
            )

    # -- what is computed --------------------------------------------------------------------------

    def _answer(
        self, asked: Prompt, wanted: Wanted, form: Form, cancellation: Cancellation
    ) -> Iterator[Event]:
        choices: list[dict[str, Any]] = []
        cached = generated = 0
        asked, block = self._known(asked, wanted.fresh)
        for index in range(wanted.n):
            done = self.cache.prefill(
                asked.ids, should_stop=lambda: cancellation.cancelled, fresh=wanted.fresh
            )
            if index == 0:
                cached = done.reused
                yield Begun(block, done.reused, _proof(done))
            sampling = wanted.sampling
            if index:  # each answer its own chance
                sampling = replace(sampling, seed=(sampling.seed + index) % _SEEDS)
            text, steps, reason = "", [], "stop"
            if wanted.stream:
                yield from map(Part, form.begin(index))
            for part in self._generate(asked, wanted, sampling, cancellation):
                generated += part.n_tokens
                reason = part.reason or reason
                told = part.steps if wanted.top is not None else None
                if wanted.stream and (part.text or told):
                    yield Part(form.chunk(index, part.text, told))
                text += part.text
                steps += part.steps
            if wanted.stream:
                yield Part(form.end(index, reason))
            else:
                told = steps if wanted.top is not None else None
                choices.append(form.choice(index, text, reason, told))
        usage = Usage(len(asked.ids), cached, generated)
        if not wanted.stream:
            yield Part(form.whole(choices, usage))
        elif wanted.counts:
            yield Part(form.counts(usage))
        yield Ended(usage)

    def _known(self, asked: Prompt, fresh: bool) -> tuple[Prompt, str | None]:
        """The whole prompt, and the id of the library's block that begins it; the block's state is
        in the cache then.
        """
        if asked.block is None:
            if fresh:
                return asked, None
            known = self.blocks.longest_prefix(asked.ids)
            return asked, known.block_id if known else None
        known = self.blocks.named(asked.block)
        header = known.header
        ids = [*header.tokens.tolist(), *header.tail.tolist(), *asked.ids, *header.after_query]
        self._require_room(len(ids))
        return Prompt(ids, None, frozenset(header.stop)), known.block_id

    def _require_usable(self, block: BlockFile) -> None:
        self.cache.require_adoptable(block)

    def _adopt(self, block: BlockFile, library: Library) -> Known:
        assert block.block_id is not None
        verify = library.needs_verification(block, "once")
        self.cache.adopt(block, verify=verify)
        if verify:
            library.record_verified(block)
        library.mark_used(block.block_id)
        return Known(block.block_id, block.header)

    def _generate(
        self, asked: Prompt, wanted: Wanted, sampling: Sampling, cancellation: Cancellation
    ) -> Iterator[Generated]:
        """The answer to the prompt that the context holds, as it comes."""
        model, context = self.engine.model, self.context
        ends = asked.end | model.end_of_generation
        room = min(wanted.most, context.settings.n_ctx - len(asked.ids))
        stops, decoder = Stops(wanted.stops), llama.Decoder(model)
        sampler = llama.Sampler(model, sampling)
        try:
            for n in range(room):
                cancellation.require_wanted()
                scored = wanted.top is not None
                logits = context.logits() if scored else None
                token = sampler.sample(context)
                if token in ends:
                    yield Generated(stops.push(decoder.finish()) + stops.finish(), [], 1, "stop")
                    return
                steps = [] if logits is None else [self._scored(token, logits, wanted.top or 0)]
                yield Generated(stops.push(decoder.push(token)), steps, 1)
                if stops.stopped:
                    yield Generated("", [], 0, "stop")
                    return
                if n + 1 < room:
                    context.decode([token], len(asked.ids) + n)
            text = stops.push(decoder.finish()) + stops.finish()
            yield Generated(text, [], 0, "length")
        finally:
            sampler.close()

    def _scored(self, token: int, logits: npt.NDArray[np.float32], top: int) -> Step:
        """A token and the `top` best ones, with the model's log-probabilities."""
        wide = logits.astype(np.float64)
        best = float(wide.max())
        total = best + float(np.log(np.exp(wide - best).sum()))
        ranked = np.argsort(-wide, kind="stable")[:top]

        def scored(index: int) -> Scored:
            return Scored(self.engine.model.piece(index, special=True), float(wide[index]) - total)

        return Step(scored(token), [scored(int(index)) for index in ranked])


def _proof(done: Prefilled) -> str:
    """What an answer may be called."""
    if not done.reused:
        return "a cold run"
    return f"exact: a cold run's bits; {done.reused} tokens from {_PLACES[done.place]}"


_SOURCES: dict[Place, str] = {
    "live": "found in the context",
    "memory": "found in memory",
    "disk": "found on the disk",
    "none": "computed",
}

_PLACES = {"live": "the context", "memory": "memory", "disk": "disk", "none": "nowhere"}


def _grammar(fields: ChatRequest | CompletionRequest) -> str | None:
    """The grammar that the answer must keep to; None for any text.

    Raises:
        UsageError: two fields ask for one, or a keyword that no grammar is made of.
    """
    wanted: list[str] = []
    if fields.grammar is not None:
        wanted.append(fields.grammar)
    if fields.json_schema is not None:
        wanted.append(grammar.of_schema(fields.json_schema))
    if isinstance(fields, ChatRequest) and fields.response_format.type != "text":
        form = fields.response_format
        wanted.append(
            grammar.of_schema(form.json_schema.schema if form.json_schema else form.schema)
        )
    if len(wanted) > 1:
        raise UsageError(
            "the request asks for two grammars",
            expected="one of response_format, json_schema, grammar",
        )
    return wanted[0] if wanted else None


def _not_here(name: str) -> UsageError:
    return UsageError(
        f"field {name} of the request is not honoured by the embedded engine",
        hint="leave the field out, or serve with --engine server",
    )
