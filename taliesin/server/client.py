"""The part of llama-server's HTTP API that is used here, with our exceptions.

Deliberately does not know: whether a server is ours, what its options are, and which slot holds
what.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import httpx

from taliesin.engine.llama import Sampling
from taliesin.errors import ServerError, UsageError
from taliesin.server.options import MAX_SLOTS

N_PROBS = 64
"""How many log-probabilities of a step are compared: the best ones, with all digits that
llama-server prints.
"""

_NAME = re.compile(r"[0-9a-f]{1,64}")


class Completion(NamedTuple):
    """One answer of `/completion`.

    logprobs: per token the best (id, log-probability) pairs, empty unless asked for; cache_n:
    prompt tokens that were reused; prompt_n: those that were evaluated; seconds are the server's
    own.
    """

    text: str
    tokens: list[int]
    logprobs: list[tuple[tuple[int, float], ...]]
    cache_n: int
    prompt_n: int
    prompt_seconds: float
    predict_seconds: float
    stopped_by: str


class Layout(NamedTuple):
    """A server's build, its slots, and the tokens of one."""

    build: str
    n_slots: int
    n_ctx: int


class Refused(ServerError):
    """llama-server answered a request with an error; `status` is HTTP's."""

    def __init__(self, status: int, said: object, where: object) -> None:
        super().__init__("llama-server refused a request", got=f"{status}: {said}", where=where)
        self.status = status


class Client:
    """The part of llama-server's HTTP API that is used here, with our exceptions.

    Raises:
        UsageError (here): `url` or `key` cannot be ones.
        ServerError (every method): not reachable, or it refused; with what it said.
    """

    def __init__(self, url: str, key: str | None = None, seconds: float = 3600.0) -> None:
        self.url = url.rstrip("/")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UsageError(
                "not a server's key", expected="printable ASCII characters", where="--server-key"
            )
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            # trust_env=False: a proxy variable must not send prompts elsewhere.
            self.http = httpx.Client(
                base_url=self.url,
                headers=headers,
                timeout=httpx.Timeout(seconds, connect=5.0),
                limits=httpx.Limits(
                    max_keepalive_connections=0
                ),  # a server that was started anew is not met on an old socket
                trust_env=False,
            )
        except httpx.InvalidURL as error:
            raise UsageError(
                "not a server address", expected="http://HOST:PORT", got=f"{url}: {error}"
            ) from error

    def close(self) -> None:
        self.http.close()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        try:
            response = self.http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise self._gone(error) from error
        return self.checked(response)

    def checked(self, response: httpx.Response) -> Any:
        """The JSON of a good response."""
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.status_code != 200:
            said = answer.get("error", answer) if isinstance(answer, dict) else response.text[:300]
            message = said.get("message", said) if isinstance(said, dict) else said
            raise Refused(response.status_code, message, response.request.url)
        if answer is None:
            raise ServerError(
                "llama-server sent something that is not JSON", where=response.request.url
            )
        return answer

    def _gone(self, error: Exception) -> ServerError:
        return ServerError(
            "llama-server does not answer",
            got=f"{type(error).__name__}: {error}" if str(error) else type(error).__name__,
            where=self.url,
            hint="taliesin server status",
        )

    def healthy(self) -> bool:
        try:
            return self.http.get("/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def layout(self) -> Layout:
        """Build and slots, as `/props` says."""
        props = self.props()
        try:
            n_slots = int(props["total_slots"])
            n_ctx = int(props["default_generation_settings"]["n_ctx"])
        except (KeyError, TypeError, ValueError) as error:
            raise ServerError(
                "not a llama-server's /props", got=repr(error), where=self.url
            ) from error
        if not (1 <= n_slots <= MAX_SLOTS and n_ctx > 0):
            raise ServerError(
                "a llama-server's slots are out of range",
                expected=f"1..{MAX_SLOTS} slots of at least one token",
                got=f"{n_slots} slots of {n_ctx}",
                where=self.url,
            )
        return Layout(str(props.get("build_info", "")), n_slots, n_ctx)

    def props(self) -> dict[str, Any]:
        answer = self.call("GET", "/props")
        if not isinstance(answer, dict):
            raise ServerError("llama-server's /props is not an object", where=self.url)
        return answer

    def complete(
        self,
        tokens: Sequence[int],
        n_predict: int,
        slot: int,
        *,
        n_probs: int = 0,
        sampling: Sampling | None = None,
        ignore_eos: bool = False,
    ) -> Completion:
        """Continue `tokens` (ids) in slot `slot`; `n_predict` 0 only evaluates them. Greedy unless
        `sampling` says otherwise.
        """
        body = self.completion_body(tokens, n_predict, slot, sampling)
        answer = self.call(
            "POST", "/completion", {**body, "n_probs": n_probs, "ignore_eos": ignore_eos}
        )
        try:
            timings = answer["timings"]
            steps = answer.get("completion_probabilities", [])
            return Completion(
                answer["content"],
                answer["tokens"],
                [tuple((p["id"], p["logprob"]) for p in step["top_logprobs"]) for step in steps],
                timings["cache_n"],
                timings["prompt_n"],
                timings["prompt_ms"] / 1e3,
                timings["predicted_ms"] / 1e3,
                answer.get("stop_type", ""),
            )
        except (KeyError, TypeError) as error:
            raise ServerError(
                "llama-server's answer lacks a field",
                got=error,
                where=self.url,
                hint="this needs the build of make server",
            ) from error

    def completion_body(
        self, tokens: Sequence[int], n_predict: int, slot: int, sampling: Sampling | None = None
    ) -> dict[str, Any]:
        """The JSON of a `/completion` request that is pinned to a slot and may reuse what the slot
        holds.
        """
        wanted = sampling or Sampling()
        chain = (
            ["temperature"]
            if wanted.temperature <= 0
            else ["top_k", "top_p", "min_p", "temperature"]
        )
        return {
            "prompt": list(tokens),
            "n_predict": n_predict,
            "id_slot": slot,
            "cache_prompt": True,
            "return_tokens": True,
            # Named one by one: a model file may carry sampling defaults of its own.
            "samplers": chain,
            "temperature": max(wanted.temperature, 0.0),
            "top_k": wanted.top_k,
            "top_p": wanted.top_p,
            "min_p": wanted.min_p,
            "seed": wanted.seed,
            **({"grammar": wanted.grammar} if wanted.grammar else {}),
        }

    def save_slot(self, slot: int, name: str) -> int:
        """Save a slot into the server's folder under `name`; tokens saved. An empty slot is never
        saved: it crashes readers.
        """
        return int(
            self.call("POST", f"/slots/{slot}?action=save", {"filename": checked_name(name)})[
                "n_saved"
            ]
        )

    def restore_slot(self, slot: int, name: str) -> int:
        """Restore a file of the server's folder; tokens restored, which says nothing about their
        being used.
        """
        return int(
            self.call("POST", f"/slots/{slot}?action=restore", {"filename": checked_name(name)})[
                "n_restored"
            ]
        )

    def erase_slot(self, slot: int) -> None:
        self.call("POST", f"/slots/{slot}?action=erase", {})


def checked_name(name: str) -> str:
    """`name`, if it is one to send to a server: hexadecimal digits and nothing that could be a
    path.
    """
    if not _NAME.fullmatch(name):
        raise UsageError("not a slot file name", expected="hexadecimal digits", got=repr(name))
    return name
