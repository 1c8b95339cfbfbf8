"""Any OpenAI-compatible server (`POST /v1/chat/completions`), one request at a time.

A server keeps what cache it likes: what it says of it is counted, nothing is assumed. Its replies
are read as they come from many servers: content as a text or in parts, reasoning in a field of its
own or as a part. Deliberately does not know: blocks. A request behind one, or under a grammar, is
refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit, urlunsplit

import httpx
import msgspec
import tenacity

from galahad.answerer.answerer import (
    Completion,
    Finish,
    Request,
    SavedPrefix,
    SharedPrefix,
    no_token,
)
from taliesin.errors import ServerError, UsageError
from taliesin.host import records

T = TypeVar("T")

RETRY_SECONDS = (1.0, 4.0)  # between three tries
_RETRIED = frozenset({429, 500, 502, 503, 504})
_REPLY_SECONDS = 1800.0  # one long answer of a slow server
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


# -- what a server replies: what is used of it, everything else is the server's own ----------------


class _Text(msgspec.Struct):
    text: str


class _Part(msgspec.Struct):
    """A part of a message's content; thinking may be a text or parts again."""

    type: Literal["text", "output_text", "thinking", "reasoning"]
    text: str | None = None
    thinking: str | list[_Text] | None = None
    reasoning: str | list[_Text] | None = None

    def __post_init__(self) -> None:
        if self.said is None:
            raise ValueError("a part that says something")

    @property
    def said(self) -> str | list[_Text] | None:
        """What the part says, under the key of its type or under `text`."""
        own = {"thinking": self.thinking, "reasoning": self.reasoning}.get(self.type)
        return self.text if own is None else own


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    reasoning_content: Any = None
    reasoning: Any = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Reply(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None


class _Models(msgspec.Struct):
    data: list[dict[str, Any]] | None = None


class _TryAgain(Exception):
    """What went wrong, where asking again can help."""


# -- asking ----------------------------------------------------------------------------------------


@dataclass
class Server:
    """One model of a server.

    Args:
        url: its root, with or without `/v1`.
        model: the name that the server knows the model by; None asks `/v1/models` and takes the
            first.
        api_key: sent as a bearer token; never stored.
        transport: of httpx, for tests.

    Raises:
        UsageError: not a URL. ServerError: not reachable, or it has no model.
    """

    url: str
    model: str | None = None
    api_key: str | None = None
    transport: httpx.BaseTransport | None = None
    _on_token: Callable[[], None] = field(init=False, default_factory=lambda: no_token)
    _prefixes: Mapping[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError("not a server's URL", expected="http://HOST:PORT", got=self._shown())
        root = self.url.rstrip("/").removesuffix("/v1")
        self._client = httpx.Client(
            base_url=root,
            headers={"Authorization": f"Bearer {self.api_key}"} if self.api_key else {},
            timeout=httpx.Timeout(_REPLY_SECONDS, connect=10.0),
            transport=self.transport,
            # A server on this machine is asked directly, whatever proxy variables say.
            trust_env=urlsplit(root).hostname not in _LOOPBACK,
        )
        if self.model is None:
            listed = self._request(_Models, "GET", "/v1/models").data or []
            names = [entry["id"] for entry in listed if isinstance(entry.get("id"), str)]
            if not names:
                raise ServerError(
                    "the server names no model", where=self._shown(), hint="--model NAME"
                )
            self.model = names[0]

    def _shown(self) -> str:
        """The URL without a user name, a password or a query."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def identity(self) -> dict[str, object]:
        return {"engine": "server", "model": self.model}

    def evidence(self) -> dict[str, object]:
        return {"url": self._shown()}

    def prepare(self, prefixes: Mapping[str, str]) -> dict[str, SavedPrefix]:
        self._prefixes = dict(prefixes)
        return {}

    def watch(self, on_token: Callable[[], None]) -> None:
        self._on_token = on_token

    def close(self) -> None:
        self._client.close()

    def complete(self, requests: Sequence[Request]) -> Iterator[Completion]:
        for request in requests:
            body = self._body(request)
            started = time.perf_counter()
            reply = self._request(_Reply, "POST", "/v1/chat/completions", body)
            seconds = time.perf_counter() - started
            self._on_token()
            yield _completion(request, reply, seconds)

    def _body(self, request: Request) -> dict[str, object]:
        from taliesin.engine.prompt import SEPARATOR

        sampling = request.sampling
        if sampling.grammar is not None:
            raise UsageError("a server is asked without a grammar", where=self._shown())
        match request.prefix:
            case None:
                content = request.question
            case SharedPrefix(name):
                content = self._prefixes[name] + SEPARATOR + request.question
            case _:
                raise UsageError(
                    "a server grafts no block of ours",
                    got=request.prefix.name,
                    where=self._shown(),
                    hint="the embedded engine does",
                )
        more = {name: getattr(sampling, name) for name in ("top_k", "top_p", "min_p")}
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": request.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed & 0x7FFFFFFF,  # some servers read a signed 32-bit number
            **{name: value for name, value in more.items() if value is not None},
        }

    def _request(
        self, kind: type[T], method: str, path: str, body: dict[str, object] | None = None
    ) -> T:
        """What the server replies, as a `kind`; tried again where trying again can help."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_TryAgain),
            stop=tenacity.stop_after_attempt(1 + len(RETRY_SECONDS)),
            wait=tenacity.wait_chain(*map(tenacity.wait_fixed, RETRY_SECONDS)),
            reraise=True,
        )
        try:
            response = retrying(self._send, method, path, body)
        except _TryAgain as trouble:
            raise self._no_answer(str(trouble)) from trouble
        if not response.is_success:
            raise self._no_answer(_refusal(response))
        try:
            value = response.json()
        except (ValueError, RecursionError) as error:
            raise ServerError("the reply is not JSON", got=error, where=self._shown()) from error
        return records.convert(
            value, kind, what="the server's reply", where=self._shown(), error=ServerError
        )

    def _send(self, method: str, path: str, body: dict[str, object] | None) -> httpx.Response:
        try:
            response = self._client.request(method, path, json=body)
        except httpx.TransportError as error:
            raise _TryAgain(f"{type(error).__name__}: {error}") from error
        if response.status_code in _RETRIED:
            raise _TryAgain(_refusal(response))
        return response

    def _no_answer(self, got: str) -> ServerError:
        return ServerError(
            "no answer from the server",
            got=got,
            where=self._shown(),
            hint="is it up, and does it know the model?",
        )


def _refusal(response: httpx.Response) -> str:
    return f"HTTP {response.status_code}: {response.text[:200]}"


def _completion(request: Request, reply: _Reply, seconds: float) -> Completion:
    choice, usage = reply.choices[0], reply.usage or _Usage()
    message = choice.message
    thinking, text = _said(message.content)
    finish: Finish = "length" if choice.finish_reason == "length" else "stop"
    reasoning = message.reasoning_content or message.reasoning or thinking
    if isinstance(reasoning, str) and reasoning:
        # The rule for answers knows reasoning by its tags; unfinished reasoning stays unfinished.
        ended = text or finish == "stop"
        text = f"<think>{reasoning}</think>{text}" if ended else f"<think>{reasoning}"
    cached = usage.prompt_tokens_details or _Cached()
    n_reused = cached.cached_tokens or 0
    return Completion(
        request=request,
        text=text,
        finish=finish,
        n_reused=n_reused,
        n_prefilled=(usage.prompt_tokens or 0) - n_reused,
        n_out=usage.completion_tokens or 0,
        decode_seconds=seconds,
        label="server",
    )


def _said(content: str | list[_Part] | None) -> tuple[str, str]:
    """(thinking, text) of a message's content."""
    if content is None or isinstance(content, str):
        return "", content or ""
    thinking, text = "", ""
    for part in content:
        said = part.said or ""
        joined = said if isinstance(said, str) else "".join(inner.text for inner in said)
        if part.type in ("text", "output_text"):
            text += joined
        else:
            thinking += joined
    return thinking, text
