"""Where completions come from: llama.cpp in this process, or any OpenAI-compatible server by URL.

A prompt is a *prefix* that many problems share and a *question*. The embedded engine saves each
prefix once as a KV block and grafts it before every question; without grafts it prefills the same
ids in the same two batches, so that the same seed gives
the same text either way. A server keeps what cache it likes: what it says of it is counted, nothing
is assumed.

Deliberately does not know: problems, answers, how often it is asked, and what becomes of a text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit, urlunsplit

from taliesin.errors import ServerError, UsageError

if TYPE_CHECKING:
    import httpx

    from taliesin.engine.embedded import Engine as Taliesin
    from taliesin.engine.embedded import Grafted
    from taliesin.engine.llama import Context, Sampling
    from taliesin.engine.prompt import Frame
    from taliesin.store.library import Library

Finish = Literal["stop", "length"]

N_CTX = 8192
_RETRY_SECONDS = (1.0, 4.0)
_RETRIED = frozenset({429, 500, 502, 503, 504})
_REPLY_SECONDS = 1800.0  # one long answer of a slow server


@dataclass(frozen=True)
class Completion:
    """One generated text and what it cost.

    `n_reused` prompt tokens came out of a stored state, `n_prefilled` were computed;
    `reuse_seconds` is the time of putting the
    state back. A server gives no phases: its `decode_seconds` is the whole request. `finish` is
    "length" where the text was cut.
    """

    text: str
    finish: Finish
    n_reused: int
    n_prefilled: int
    n_out: int
    reuse_seconds: float
    prefill_seconds: float
    decode_seconds: float


class SavedPrefix(NamedTuple):
    """A prefix that was stored: its length, and what its prefill and its writing took."""

    n_tokens: int
    prefill_seconds: float
    save_seconds: float
    block_id: str


class Engine(Protocol):
    """What the solver asks of a source of completions."""

    def identity(self) -> dict[str, object]:
        """What decides which texts come out, JSON-ready: two runs are comparable only where it is
        equal.
        """

    def evidence(self) -> dict[str, object]:
        """Facts about this machine and this build, JSON-ready."""

    def prepare(self, prefixes: Mapping[str, str]) -> dict[str, SavedPrefix]:
        """Take the prefixes by name, before the first completion; those that were saved as
        blocks.
        """

    def complete(
        self,
        prefix: str,
        question: str,
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        opening: str = "",
        end: str = "",
    ) -> Completion:
        """The answer to `question` after the prefix of that name.

        opening: how the answer begins, put into the model's mouth and part of the text. end: a text
        that ends the answer after the opening. An engine that cannot do either leaves both out, and
        the text is what the model made of it.

        Raises:
            ContextFull: the prompt does not fit. ServerError: no answer from the server.
        """

    def watch(self, on_token: Callable[[], None]) -> None:
        """Have `on_token` called after every token (a server: once with each reply)."""

    def close(self) -> None: ...


def _nothing() -> None:
    return


def answer_in(
    engine: Taliesin,
    context: Context,
    position: int,
    batches: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    sampling: Sampling,
    stop: Iterable[int],
    opening: str = "",
    end: str = "",
    reuse_seconds: float = 0.0,
    on_token: Callable[[], None] = _nothing,
) -> Completion:
    """What the model says after the `position` tokens that `context` holds and `batches` of ids,
    each prefilled on its own.

    The last batch ends with the ids of `opening`; `reuse_seconds` is what putting the held tokens
    there took. Otherwise as `Engine.complete`, with the ids of `stop` besides the model's own ends.
    """
    n_reused = position
    started = time.perf_counter()
    for number, ids in enumerate(batches, 1):
        context.decode(ids, position, logits=number == len(batches))
        position += len(ids)
    prefilled = time.perf_counter()
    text, n_out = "", 0
    finish: Finish = "stop"
    room = min(max_tokens, context.settings.n_ctx - position)
    for step in engine.continue_from(context, position, room, sampling, frozenset(stop)):
        text += step.text
        n_out += step.token >= 0
        on_token()
        if end and end in text:
            break
    else:
        finish = "length" if n_out >= room else "stop"
    return Completion(
        opening + text,
        finish,
        n_reused,
        position - n_reused,
        n_out,
        reuse_seconds,
        prefilled - started,
        time.perf_counter() - prefilled,
    )


# -- llama.cpp in this process ---------------------------------------------------------------------


@dataclass
class Embedded:
    """llama.cpp through taliesin.

    Args:
        model: a catalogue name or the path of a GGUF file.
        folder: where the blocks of the prefixes are kept (a library; made if it is not there).
        graft: save and graft prefixes; without it they are prefilled each time.
        n_ctx: cells for prefix, question and answer together; at most what the model was trained
        on.

    Raises:
        ModelError, EngineUnavailable, UnsupportedModel: as `taliesin.engine.Engine`.
    """

    model: str
    folder: Path
    graft: bool = True
    n_threads: int = 2
    n_ctx: int = N_CTX
    gpu_layers: int = 0
    _on_token: Callable[[], None] = field(init=False, default_factory=lambda: _nothing)
    _engine: Taliesin = field(init=False)
    _library: Library | None = field(init=False, default=None)
    _grafted: dict[str, Grafted] = field(init=False, default_factory=dict)
    _ids: dict[str, list[int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        from taliesin.engine import prompt
        from taliesin.engine.embedded import Engine as Taliesin
        from taliesin.engine.llama import Settings

        self._engine = Taliesin(
            self.model, Settings(n_ctx=self.n_ctx, n_threads=self.n_threads), self.gpu_layers
        )
        trained = self._engine.model.n_ctx_train
        if trained and trained < self.n_ctx:
            self.n_ctx = trained
            self._engine.settings = Settings(n_ctx=trained, n_threads=self.n_threads)
        self._frame: Frame = prompt.frame(self._engine.model)

    def identity(self) -> dict[str, object]:
        return {
            "engine": "embedded",
            "model": Path(self.model).name,
            "model_sha256": self._engine.model_sha256,
            "n_ctx": self.n_ctx,
        }

    def evidence(self) -> dict[str, object]:
        return {"recipe": self._engine.recipe(self._fresh())}

    def prepare(self, prefixes: Mapping[str, str]) -> dict[str, SavedPrefix]:
        from taliesin.engine import prompt
        from taliesin.store.library import Library

        if not self.graft:
            self._ids = {
                name: prompt.document_parts(self._engine.model, self._frame, text, self.n_ctx)[0]
                for name, text in prefixes.items()
            }
            return {}
        self._library = Library(self.folder)
        saved = {}
        for name, text in prefixes.items():
            # Saved anew at each start: prefilling some hundred tokens costs less than the question
            # whether an older block fits.
            [block] = self._engine.save(
                self._library, text, f"prefix {name}", align="whole", replace_existing=True
            )
            n_tokens = len(block.header.tokens)
            saved[name] = SavedPrefix(
                n_tokens, block.prefill_seconds, block.save_seconds, block.info.id
            )
        # After the last save: a save empties the context that a graft lies in.
        for name in prefixes:
            room = self.n_ctx - saved[name].n_tokens
            with self._library.open(f"prefix {name}") as block_file:
                self._grafted[name] = self._engine.graft(
                    block_file, library=self._library, n_extra=room
                )
        return saved

    def complete(
        self,
        prefix: str,
        question: str,
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        opening: str = "",
        end: str = "",
    ) -> Completion:
        from taliesin.engine.llama import Sampling

        model = self._engine.model
        query = [
            *model.tokenize(question, special=False),
            *self._frame.after,
            *model.tokenize(opening, special=False),
        ]
        if self._library is not None:
            grafted = self._grafted[prefix]
            context, n_prefix, batches = grafted.context, len(grafted.header.tokens), [query]
            started = time.perf_counter()
            grafted.put_back()
            reuse_seconds = time.perf_counter() - started
        else:
            # Two batches, as a graft has: the same sums, so the same text.
            context, n_prefix, batches = self._fresh(), 0, [self._ids[prefix], query]
            reuse_seconds = 0.0
        room = self.n_ctx - n_prefix - sum(map(len, batches))
        return answer_in(
            self._engine,
            context,
            n_prefix,
            batches,
            max_tokens=min(max_tokens, room),
            sampling=Sampling(temperature=temperature, seed=seed),
            stop=self._frame.stop,
            opening=opening,
            end=end,
            reuse_seconds=reuse_seconds,
            on_token=self._on_token,
        )

    def _fresh(self) -> Context:
        return self._engine.context(self._engine.settings, self.n_ctx)

    def watch(self, on_token: Callable[[], None]) -> None:
        self._on_token = on_token

    def close(self) -> None:
        self._engine.close()
        if self._library is not None:
            self._library.close()


# -- a server --------------------------------------------------------------------------------------


@dataclass
class Server:
    """An OpenAI-compatible server (`POST /v1/chat/completions`).

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
    _on_token: Callable[[], None] = field(init=False, default_factory=lambda: _nothing)
    _prefixes: Mapping[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        import httpx

        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError("not a server's URL", expected="http://HOST:PORT", got=self._shown())
        root = self.url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        timeout = httpx.Timeout(_REPLY_SECONDS, connect=10.0)
        # A server on this machine is asked directly, whatever proxy variables say.
        here = urlsplit(root).hostname in ("localhost", "127.0.0.1", "::1")
        self._client = httpx.Client(
            base_url=root,
            headers=headers,
            timeout=timeout,
            transport=self.transport,
            trust_env=not here,
        )
        if self.model is None:
            models = self._request("GET", "/v1/models").get("data") or []
            names = [
                entry["id"]
                for entry in models
                if isinstance(entry, dict) and isinstance(entry.get("id"), str)
            ]
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

    def complete(
        self,
        prefix: str,
        question: str,
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        opening: str = "",
        end: str = "",
    ) -> Completion:
        from taliesin.engine.prompt import SEPARATOR

        started = time.perf_counter()
        reply = self._request(
            "POST",
            "/v1/chat/completions",
            {
                "model": self.model,
                "messages": [
                    {"role": "user", "content": self._prefixes[prefix] + SEPARATOR + question}
                ],
                "max_tokens": max_tokens,
                "temperature": temperature,
                "seed": seed & 0x7FFFFFFF,  # some servers read a signed 32-bit number
            },
        )
        seconds = time.perf_counter() - started
        self._on_token()
        try:
            choice = reply["choices"][0]
            message = choice["message"]
            thinking, text = _parts(message.get("content"))
            usage = reply.get("usage") or {}
            details = usage.get("prompt_tokens_details") or {}
            n_prompt, n_out = (
                int(usage.get("prompt_tokens") or 0),
                int(usage.get("completion_tokens") or 0),
            )
            n_reused = int(details.get("cached_tokens") or 0)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ServerError(
                "the reply is not a chat completion", got=repr(error), where=self._shown()
            ) from error
        reasoning = message.get("reasoning_content") or message.get("reasoning") or thinking
        finish: Finish = "length" if choice.get("finish_reason") == "length" else "stop"
        if isinstance(reasoning, str) and reasoning:
            # The rule for answers knows reasoning by its tags; unfinished reasoning stays
            # unfinished.
            text = (
                f"<think>{reasoning}</think>{text}"
                if text or finish == "stop"
                else f"<think>{reasoning}"
            )
        return Completion(text, finish, n_reused, n_prompt - n_reused, n_out, 0.0, 0.0, seconds)

    def _request(
        self, method: str, path: str, body: dict[str, object] | None = None
    ) -> dict[str, Any]:
        """The JSON object that the server replies; tried again where trying again can help."""
        import httpx

        trouble: object = None
        for wait in (*_RETRY_SECONDS, None):
            try:
                response = self._client.request(method, path, json=body)
            except httpx.TransportError as error:
                trouble = f"{type(error).__name__}: {error}"
            else:
                if response.is_success:
                    try:
                        reply = response.json()
                    except ValueError as error:
                        raise ServerError(
                            "the reply is not JSON", got=error, where=self._shown()
                        ) from error
                    if not isinstance(reply, dict):
                        raise ServerError(
                            "the reply is not a JSON object", got=type(reply), where=self._shown()
                        )
                    return reply
                trouble = f"HTTP {response.status_code}: {response.text[:200]}"
                if response.status_code not in _RETRIED:
                    break
            if wait is not None:
                time.sleep(wait)
        raise ServerError(
            "no answer from the server",
            got=trouble,
            where=self._shown(),
            hint="is it up, and does it know the model?",
        )

    def watch(self, on_token: Callable[[], None]) -> None:
        self._on_token = on_token

    def close(self) -> None:
        self._client.close()


def _parts(content: object) -> tuple[str, str]:
    """(thinking, text) of a message's `content`: a string, nothing, or a list of parts.

    Raises:
        TypeError: something else, which no server of this protocol sends.
    """
    if content is None or isinstance(content, str):
        return "", content or ""
    if not isinstance(content, list):
        raise TypeError(f"content is {type(content).__name__}")
    thinking, text = "", ""
    for part in content:
        kind = part["type"]
        if kind in ("thinking", "reasoning"):
            said = part.get(kind, part.get("text"))
            thinking += said if isinstance(said, str) else "".join(p["text"] for p in said)
        elif kind in ("text", "output_text"):
            text += part["text"]
        else:
            raise TypeError(f"a part of type {kind!r}")
    return thinking, text
