"""Answers in OpenAI's form: objects and chunks of chat and text completions, log-probabilities, and
texts that end at a stop text.

Deliberately does not know: engines, HTTP.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from taliesin.serve.plan import Usage


class Scored(NamedTuple):
    """A token's bytes and log-probability."""

    piece: bytes
    logprob: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "token": self.piece.decode("utf-8", "replace"),
            "logprob": self.logprob,
            "bytes": list(self.piece),
        }


class Step(NamedTuple):
    """A generated token with the best others at its place; `top` is empty unless asked for."""

    chosen: Scored
    top: list[Scored]

    def as_dict(self) -> dict[str, Any]:
        return self.chosen.as_dict() | {"top_logprobs": [one.as_dict() for one in self.top]}


def usage_of(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


@dataclass
class Stops:
    """A text that comes in parts and ends where one of `stops` begins; what may be the beginning of
    one is held back.
    """

    stops: Sequence[str]
    stopped: bool = False
    _held: str = ""

    def push(self, text: str) -> str:
        """What of the text so far may be shown now."""
        self._held += text
        found = [at for stop in self.stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        keep = max((self._overlap(stop) for stop in self.stops), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """What was held back, when nothing follows."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, stop: str) -> int:
        """How many characters at the end of what is held begin `stop`."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)


@dataclass
class Form:
    """The objects of one answer, all with its id, time and model."""

    chat: bool
    model: str
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = ("chatcmpl-" if self.chat else "cmpl-") + os.urandom(12).hex()

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """An answer in one piece."""
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self._head(kind), "choices": choices, "usage": usage_of(usage)}

    def choice(
        self, index: int, text: str, reason: str, steps: list[Step] | None
    ) -> dict[str, Any]:
        """One choice of `whole`; `steps` where log-probabilities were asked for."""
        said: dict[str, Any] = {"text": text}
        if self.chat:
            said = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {
            "index": index,
            **said,
            "logprobs": self._logprobs(steps),
            "finish_reason": reason,
        }

    def begin(self, index: int) -> Iterator[dict[str, Any]]:
        """What comes before the first text of a streamed choice."""
        if self.chat:
            yield self._chunk(index, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, index: int, text: str, steps: list[Step] | None) -> dict[str, Any]:
        """Some text of a streamed choice."""
        return self._chunk(index, {"content": text}, None, steps)

    def end(self, index: int, reason: str) -> dict[str, Any]:
        """The end of a streamed choice."""
        return self._chunk(index, {}, reason, None)

    def counts(self, usage: Usage) -> dict[str, Any]:
        """The last chunk of a stream whose client asked for the counts."""
        return {**self._head(self._chunks), "choices": [], "usage": usage_of(usage)}

    @property
    def _chunks(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: str | None, steps: list[Step] | None
    ) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": delta}
        if not self.chat:
            said = {"text": delta.get("content", "")}
        choice = {
            "index": index,
            **said,
            "logprobs": self._logprobs(steps),
            "finish_reason": reason,
        }
        return {**self._head(self._chunks), "choices": [choice]}

    def _logprobs(self, steps: list[Step] | None) -> dict[str, Any] | None:
        if steps is None:
            return None
        if self.chat:
            return {"content": [step.as_dict() for step in steps], "refusal": None}
        tokens = [step.chosen.as_dict()["token"] for step in steps]
        return {
            "tokens": tokens,
            "token_logprobs": [step.chosen.logprob for step in steps],
            "top_logprobs": [
                {one.as_dict()["token"]: one.logprob for one in step.top} for step in steps
            ],
            "text_offset": [sum(map(len, tokens[:i])) for i in range(len(tokens))],
        }
