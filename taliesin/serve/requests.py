"""What a client may ask: the bodies of /v1/chat/completions and /v1/completions, typed.

Promises: a field that would change the answer is honoured or refused with its name; only fields
that cannot change one are ignored (`IGNORED`). A null is a field that is not there, as OpenAI's
clients mean it. Deliberately does not know: which engine answers; each one refuses for itself what
it cannot do (`Request.passed` is what only llama-server knows).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, field

from taliesin.errors import UsageError
from taliesin.host import records
from taliesin.host.records import Record

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"

IGNORED = frozenset(
    {
        # Who asks, how it is billed or filed: nothing that a model sees.
        *("user", "metadata", "store", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention"),
        "prediction",  # a guess that may only make the same answer quicker
        # llama-server's own: how it computes is ours to say, and the answer is the fresh one.
        *("id_slot", "n_cache_reuse", "timings_per_token", "return_progress"),
        *("sse_ping_interval", "verbose"),
    }
)
"""Fields that cannot change an answer: accepted and dropped."""

LLAMA_SERVER = frozenset(
    {
        *("samplers", "min_keep", "top_n_sigma", "typical_p", "repeat_last_n", "ignore_eos"),
        *("xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent"),
        *("mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay"),
        *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
        *("dry_sequence_breakers", "n_probs", "post_sampling_probs", "return_tokens", "lora"),
        *("n_keep", "n_discard", "n_indent", "t_max_predict_ms", "backend_sampling"),
        *("grammar_lazy", "grammar_triggers", "preserved_tokens", "response_fields"),
        *("chat_template_kwargs", "reasoning_format", "reasoning_effort", "reasoning_control"),
        *("reasoning_budget_tokens", "thinking_budget_tokens", "reasoning_budget_message"),
        *("add_generation_prompt", "continue_final_message"),
    }
)
"""Fields that only llama-server has: passed on to it, refused by name elsewhere."""

MOST_TOKENS = 1 << 31
_MOST_STOPS = 64

Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=0, lt=MOST_TOKENS)]


class StreamOptions(Record, frozen=True, kw_only=True):
    """`include_usage`: a last chunk with the counts; padding against observers is never sent."""

    include_usage: bool = False
    include_obfuscation: bool = False


class JsonSchema(Record, frozen=True, kw_only=True):
    name: str = ""
    description: str | None = None
    schema: dict[str, Any] = field(default_factory=dict)
    strict: bool | None = None


class ResponseFormat(Record, frozen=True, kw_only=True):
    """`schema` with "json_object" is llama-server's form."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.json_schema is None) == (self.type == "json_schema"):
            raise ValueError("a json_schema where the type is json_schema, and only there")


class _Common(Record, frozen=True, kw_only=True):
    """Fields of both kinds of request. cache_prompt: false is a cold run, with the same answer."""

    model: str = ""
    taliesin_block: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: Annotated[int, Meta(ge=-1, lt=MOST_TOKENS)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=MOST_TOKENS)] | None = None
    min_p: Probability | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: str | list[str] = field(default_factory=list)
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] = 1.0
    logit_bias: dict[str, bool | float] = field(default_factory=dict)
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    cache_prompt: bool = True

    def __post_init__(self) -> None:
        if len(self.stops) > _MOST_STOPS:
            raise ValueError(f"at most {_MOST_STOPS} stop texts")

    @property
    def stops(self) -> list[str]:
        """The texts that end an answer."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop
        return [text for text in given if text]


class ChatRequest(_Common, frozen=True, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    response_format: ResponseFormat = ResponseFormat(type="text")
    tools: list[dict[str, Any]] = field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs together with logprobs: true")
        if not self.messages:
            raise ValueError("at least one of messages")


class CompletionRequest(_Common, frozen=True, kw_only=True):
    """The body of /v1/completions. `prompt`: one text or one list of token ids."""

    prompt: str | list[int]
    logprobs: Annotated[int, Meta(ge=0, le=64)] | None = None
    echo: Literal[False] = False
    best_of: Literal[1] = 1
    suffix: Literal[""] = ""


@dataclass(frozen=True)
class Request:
    """One request, checked.

    fields: what was asked; body: the same as the client sent it, without what is ignored or null;
    passed: names in it that only llama-server knows.
    """

    path: str
    fields: ChatRequest | CompletionRequest
    body: Mapping[str, Any]
    passed: frozenset[str]


T = TypeVar("T", ChatRequest, CompletionRequest)


def read(path: str, raw: bytes) -> Request:
    """The request that `raw`, the body of a POST to `path`, makes.

    Raises:
        UsageError: not a JSON object; a field that is unknown, of another kind or out of range,
        named.
    """
    value = records.parse(raw, what="the body", error=UsageError)
    if not isinstance(value, dict):
        raise UsageError("the body is not a JSON object", got=type(value).__name__)
    _require_finite(value)
    body = {k: v for k, v in value.items() if v is not None and k not in IGNORED}
    # Other names of the same fields: OpenAI's newer one, and llama-server's.
    for other, name in (("max_completion_tokens", "max_tokens"), ("n_predict", "max_tokens")):
        if other in body:
            body[name] = body.pop(other)
    if "n_cmpl" in body:
        body["n"] = body.pop("n_cmpl")
    passed = frozenset(body.keys() & LLAMA_SERVER)
    known = {k: v for k, v in body.items() if k not in passed}
    if path == CHAT:
        return Request(path, _typed(known, ChatRequest), body, passed)
    if "prompt" in known:
        known["prompt"] = body["prompt"] = one_prompt(known["prompt"])
    return Request(path, _typed(known, CompletionRequest), body, passed)


def _typed(known: dict[str, Any], kind: type[T]) -> T:
    return records.convert(
        known, kind, what="the request", error=UsageError, hint="leave the field out"
    )


def _require_finite(value: dict[str, Any]) -> None:
    """What Python reads and nobody else can: 1e999, an integer beyond any machine's."""
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise UsageError("a number of the body is out of range", got=error) from error


def one_prompt(value: Any) -> Any:
    """The one prompt in a list of one, itself where it is no list of prompts.

    Raises:
        UsageError: several, or an id that is none.
    """
    if not isinstance(value, list):
        return value
    if value and isinstance(value[0], (str, list)):
        if len(value) > 1:
            raise UsageError(
                "field prompt of the request holds several prompts",
                expected="one: a text, or a list of token ids",
                got=len(value),
                hint="send a request for each",
            )
        value = value[0]
        if isinstance(value, str):
            return value
    if not value or not all(type(i) is int and 0 <= i < MOST_TOKENS for i in value):
        raise UsageError(
            "field prompt of the request is no list of token ids",
            expected=f"at least one, each in 0..{MOST_TOKENS - 1}",
        )
    return value


def text_of(content: Any, where: str) -> str:
    """A message's content as one text: a string, or parts of type text.

    Raises:
        UsageError: anything else, with `where` it stands.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UsageError(
            f"field {where} of the request is no text",
            expected="a string, or a list of text parts",
            got=type(content).__name__,
        )
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise UsageError(
                f"field {where}[{index}] of the request is no text part",
                expected='{"type": "text", "text": ...}',
                got=kind,
            )
        texts.append(part["text"])
    return "".join(texts)
