"""llama-server behind the front: blocks of the library are grafted into its slots, and everything
else of OpenAI's protocol is its own.

A request's prompt is tokenised by the server itself; the longest block that is a prefix of its ids,
or the one named in `taliesin_block`, is put into a slot, and the request goes to the server pinned
to that slot. Everything else passes through, pinned too and without reuse, so that its answer is a
fresh one.

Promises: an answer begins only after the server's own counts were read from its first chunk: an
ineffective graft is an error, never an answer. One request computes at a time (`slots`), also after
one whose client left: the next waits until the server has let go of it, because two slots decoded
at once share a batch, which changes bits. Deliberately does not know: HTTP towards the client.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from taliesin.engine.backend import Grafted
from taliesin.errors import ServerError, UsageError
from taliesin.serve.blocks import Blocks
from taliesin.serve.plan import Begun, Cancellation, Count, Ended, Event, Job, Left, Part, Usage
from taliesin.serve.requests import CHAT, TEXT, ChatRequest, Request, text_of
from taliesin.server.backend import ServerBackend
from taliesin.server.client import Refused
from taliesin.server.served import InSlot
from taliesin.server.slots import Slot

_IDLE_SECONDS = 30.0  # for the server to let go of a request that was given up
_LOOK_SECONDS = 0.02
# What the server says with a 500 about a request that it cannot read.
_CLIENTS_FAULT = ("[json.exception", '"', "Unsupported param", "Only no ", "grammar")


class LlamaServer:
    """A llama-server as a `plan.Service`."""

    turns = 1

    def __init__(self, engine: ServerBackend, library: Path | None, model_id: str) -> None:
        self.engine, self.model_id = engine, model_id
        self.blocks: Blocks[Grafted[InSlot]] = Blocks(
            library,
            engine.require_usable,
            lambda block, store: engine.graft(block, library=store),
            engine.slots.n_slots,
        )

    def counts(self) -> list[Count]:
        """See `plan.Service.counts`: llama-server's own are asked there."""
        return []

    def prepare(self, request: Request) -> Job:
        """See `plan.Service.prepare`."""
        if request.fields.n != 1:
            raise UsageError(
                "field n of the request: one answer at a time, several would be computed in one "
                "batch",
                expected=1,
                got=request.fields.n,
            )
        body = dict(request.body)
        body.pop("cache_prompt", None)  # what is reused is ours to say
        named = body.pop("taliesin_block", None)
        if named is not None:
            return self._named(request, body, named)
        with _clients_fault():
            ids = self._prompt_ids(request.path, body)

        def job(cancellation: Cancellation) -> Iterator[Event]:
            wanted = ids and request.fields.cache_prompt
            grafted = self.blocks.longest_prefix(ids) if wanted else None
            query = ids[len(grafted.header.tokens) :] if grafted and ids else []
            yield from self._answer(request.path, body, grafted, query, cancellation)

        return job

    def _named(self, request: Request, body: dict[str, Any], name: str) -> Job:
        """The job of a request that names a block: its prompt, or its one message, is the question
        after it.
        """
        as_chat = request.path == CHAT
        if isinstance(request.fields, ChatRequest):
            question: str | list[int] = _question(request.fields)
            del body["messages"]
            _as_text_request(request.fields, body)
        else:
            question = request.fields.prompt
        if not isinstance(question, str):
            raise UsageError(
                "field prompt of the request: a named block takes one question",
                expected="a text",
                hint="the block is the text; the question follows it",
            )

        def job(cancellation: Cancellation) -> Iterator[Event]:
            grafted = self.blocks.named(name)
            query = grafted.query(question)
            if not query:
                raise UsageError(
                    "the prompt adds no token after the block", expected="at least one"
                )
            sent = {**body, "prompt": [*grafted.header.tokens.tolist(), *query]}
            events = self._answer(TEXT, sent, grafted, query, cancellation)
            yield from _as_chat(events, request) if as_chat else events

        return job

    def _prompt_ids(self, path: str, body: dict[str, Any]) -> list[int]:
        """The ids that llama-server will make of the request."""
        client = self.engine.server.client
        if path == CHAT:
            prompt = client.call("POST", "/apply-template", body)["prompt"]
        else:
            prompt = body["prompt"]
            if isinstance(prompt, list):
                return prompt
        if not isinstance(prompt, str):
            return []
        made = client.call(
            "POST", "/tokenize", {"content": prompt, "add_special": True, "parse_special": True}
        )
        tokens: list[int] = made["tokens"]
        return tokens

    def _answer(
        self,
        path: str,
        body: dict[str, Any],
        grafted: Grafted[InSlot] | None,
        query: list[int],
        cancellation: Cancellation,
    ) -> Iterator[Event]:
        """The events of one request in one slot, after `grafted` or from nothing."""
        engine = self.engine
        with engine.slots.lease(grafted.place.block_id if grafted else None) as slot:
            cancellation.require_wanted()
            if grafted:
                n_block = len(grafted.header.tokens)
                grafted.place.bring_in(slot, query[0])
            else:
                n_block, slot.block = 0, None
            pinned = {
                **body,
                "id_slot": slot.number,
                "cache_prompt": grafted is not None,
                "timings_per_token": True,
            }
            try:
                with _clients_fault(), self._sent(path, pinned, cancellation) as chunks:
                    head: list[dict[str, Any]] = []
                    for chunk in chunks:
                        head.append(chunk)
                        if "timings" in chunk:  # a chat stream begins with one that has none
                            break
                    timings = head[-1].get("timings", {}) if head else {}
                    if grafted:
                        engine.served.require_effective(
                            n_block,
                            len(query),
                            timings.get("cache_n", -1),
                            timings.get("prompt_n", -1),
                        )
                        # Unknown until the end; the next request puts the block back where this
                        # one leaves the ring.
                        slot.next_token, slot.end = query[0], engine.n_ctx
                    proof = grafted.label if grafted else "not grafted"
                    yield Begun(grafted.place.block_id if grafted else None, n_block, proof)
                    for chunk in itertools.chain(head, chunks):
                        timings = chunk.get("timings", timings)
                        yield Part(chunk)
                    yield Ended(_usage(timings))
            except BaseException:
                if cancellation.cancelled:
                    self._await_idle(slot)
                    raise Left from None
                raise

    @contextmanager
    def _sent(
        self, path: str, body: dict[str, Any], cancellation: Cancellation
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """Send a request; the JSON objects of its answer, of which there is at least one.

        A cancellation closes the connection, which ends the server's computation.
        """
        client = self.engine.server.client

        def connected(name: str, info: dict[str, Any]) -> None:
            if name == "connection.connect_tcp.complete":
                ours: socket.socket = info["return_value"].get_extra_info("socket")

                def cut() -> None:
                    with contextlib.suppress(OSError):
                        ours.shutdown(socket.SHUT_RDWR)

                cancellation.on_cancel(cut)

        request = client.http.build_request(
            "POST", path, json=body, extensions={"trace": connected}
        )
        try:
            response = client.http.send(request, stream=True)
            try:
                kind = response.headers.get("content-type", "")
                if response.status_code == HTTPStatus.OK and "text/event-stream" in kind:
                    yield _events(response)
                else:
                    response.read()
                    yield iter([client.checked(response)])
            finally:
                response.close()
        except httpx.HTTPError as error:
            raise ServerError(
                "llama-server went away while it answered",
                got=error,
                where=self.engine.server.url,
            ) from error

    def _await_idle(self, slot: Slot) -> None:
        """Wait until the server has let go of what `slot` computed."""
        deadline = time.monotonic() + _IDLE_SECONDS
        with contextlib.suppress(ServerError, KeyError, TypeError):  # one that others started
            while time.monotonic() < deadline:
                slots = self.engine.server.client.call("GET", "/slots")
                if not any(s["is_processing"] for s in slots if s["id"] == slot.number):
                    return
                time.sleep(_LOOK_SECONDS)


@contextmanager
def _clients_fault() -> Iterator[None]:
    """What the server refuses because of the request is the client's fault: with a 502 it would try
    again. A template that raises, and a field that cannot be read, are 500s of llama-server's.
    """
    try:
        yield
    except Refused as error:
        said = str(error.got).partition(": ")[2]
        if error.status == HTTPStatus.BAD_REQUEST or (
            error.status == HTTPStatus.INTERNAL_SERVER_ERROR
            and ("apply-template" in str(error.where) or said.startswith(_CLIENTS_FAULT))
        ):
            raise UsageError("llama-server refused the request", got=error.got) from error
        raise


def _question(fields: ChatRequest) -> str:
    """The one user message of a request that names a block."""
    if len(fields.messages) != 1 or fields.messages[0].get("role") != "user":
        raise UsageError(
            "field messages of the request: a named block takes one question",
            expected="one user message",
            hint="the block is the text; the question follows it",
        )
    return text_of(fields.messages[0].get("content"), "messages[0].content")


def _as_text_request(fields: ChatRequest, body: dict[str, Any]) -> None:
    """Make the fields of a chat request in `body` those of a text completion.

    Raises:
        UsageError: one has no counterpart there, named.
    """
    body.pop("parallel_tool_calls", None)  # says nothing where there are no tools
    for name in ("tools", "tool_choice", *_TEMPLATE_FIELDS):
        if body.pop(name, None) not in (None, [], "none", "auto"):
            raise UsageError(
                f"field {name} of the request is not honoured together with taliesin_block",
                hint="leave it out, or send the text as messages: its block is found by itself",
            )
    form = fields.response_format
    body.pop("response_format", None)
    if form.type != "text":
        schema = form.json_schema.schema if form.json_schema else form.schema
        body["json_schema"] = schema or {"type": "object"}
    body.pop("logprobs", None)
    wanted = body.pop("top_logprobs", None)
    if fields.logprobs:
        body["n_probs"] = max(wanted or 0, 1)


_TEMPLATE_FIELDS = (
    "chat_template_kwargs",
    "reasoning_format",
    "reasoning_effort",
    "reasoning_control",
    "reasoning_budget_tokens",
    "thinking_budget_tokens",
    "reasoning_budget_message",
    "add_generation_prompt",
    "continue_final_message",
)


def _usage(timings: dict[str, Any]) -> Usage:
    cached, evaluated = timings.get("cache_n", 0), timings.get("prompt_n", 0)
    return Usage(cached + evaluated, cached, timings.get("predicted_n", 0))


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The data of a stream of server-sent events, up to [DONE]."""
    for line in response.iter_lines():
        name, _, data = line.partition(":")
        if name == "error":
            raise ServerError("llama-server failed while it answered", got=data.strip()[:300])
        if name != "data" or data.strip() == "[DONE]":
            continue
        try:
            yield json.loads(data)
        except ValueError as error:
            raise ServerError(
                "llama-server sent something that is not JSON", got=data.strip()[:300]
            ) from error


def _as_chat(events: Iterator[Event], request: Request) -> Iterator[Event]:
    """A text completion's events as those of a chat completion."""
    for event in events:
        if not isinstance(event, Part):
            yield event
        elif not request.fields.stream:
            yield Part(_as_chat_object(event.data, "message", "chat.completion"))
        else:
            usage = event.data.pop("usage", None)
            chunk = _as_chat_object(event.data, "delta", "chat.completion.chunk")
            yield Part(chunk)
            if usage and request.fields.stream_options.include_usage:
                yield Part({**chunk, "choices": [], "usage": usage})


def _as_chat_object(data: dict[str, Any], key: str, kind: str) -> dict[str, Any]:
    choices = [
        {
            "index": choice["index"],
            key: {"role": "assistant", "content": choice["text"]},
            "logprobs": choice.get("logprobs"),
            "finish_reason": choice["finish_reason"],
        }
        for choice in data["choices"]
    ]
    return {**data, "object": kind, "choices": choices}
