"""What a server's replies become, what is tried again, and what is refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from galahad.answerer import openai
from galahad.answerer.answerer import (
    BlockPrefix,
    Completion,
    Request,
    Sampling,
    SharedPrefix,
    in_order,
    one,
)
from galahad.answerer.openai import Server
from taliesin.errors import EngineUnavailable, ServerError, UsageError
from taliesin.server import process as llama_server
from taliesin.server.options import Options

Handler = Callable[[httpx.Request], httpx.Response]
CHAT = {"choices": [{"message": {"content": "\\boxed{7}"}, "finish_reason": "stop"}]}
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 64},
}


def serve(handler: Handler, **options: Any) -> Server:
    options.setdefault("model", "m")
    return Server(
        options.pop("url", "http://host:1"), transport=httpx.MockTransport(handler), **options
    )


def ask(server: Server, max_tokens: int = 50, **sampling: Any) -> Completion:
    server.prepare({"p": "PREFIX"})
    request = Request(
        prefix=SharedPrefix("p"),
        question="QUESTION",
        max_tokens=max_tokens,
        sampling=Sampling(**{"temperature": 0.5, "seed": 2**32 - 2, **sampling}),
    )
    return one(server, request)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "RETRY_SECONDS", (0.0, 0.0))


def test_a_request_holds_prefix_question_seed_and_limits() -> None:
    seen: list[httpx.Request] = []

    def reply(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={**CHAT, "usage": USAGE})

    found = ask(serve(reply, url="http://host:1/v1/", api_key="k"))
    body = json.loads(seen[0].content)
    assert str(seen[0].url) == "http://host:1/v1/chat/completions"
    assert seen[0].headers["authorization"] == "Bearer k"
    assert body["messages"] == [{"role": "user", "content": "PREFIX\n\nQUESTION"}]
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("m", 50, 0.5)
    assert 0 <= body["seed"] < 2**31
    assert (found.text, found.finish) == ("\\boxed{7}", "stop")
    assert (found.n_reused, found.n_prefilled, found.n_out) == (64, 36, 12)


def test_a_question_may_stand_alone_and_sampling_is_sent_only_where_it_was_chosen() -> None:
    bodies: list[dict[str, Any]] = []

    def reply(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json=CHAT)

    plain = Request(question="WHY", max_tokens=9)
    chosen = Request(question="WHY", max_tokens=9, sampling=Sampling(top_p=0.5, seed=3))
    in_order(serve(reply), [plain, chosen])
    assert bodies[0]["messages"] == [{"role": "user", "content": "WHY"}]
    assert "top_p" not in bodies[0]
    assert (bodies[1]["top_p"], bodies[1]["seed"]) == (0.5, 3)


def test_a_block_and_a_grammar_are_refused_and_nothing_is_asked() -> None:
    server = serve(lambda _: pytest.fail("asked"))
    library: Any = object()
    block = Request(question="q", max_tokens=9, prefix=BlockPrefix(library, "b"))
    grammar = Request(question="q", max_tokens=9, sampling=Sampling(grammar="root ::= [0-9]"))
    for request in (block, grammar):
        with pytest.raises(UsageError):
            one(server, request)


def test_a_reply_that_was_cut_says_so() -> None:
    cut = {"choices": [{"message": {"content": "so"}, "finish_reason": "length"}]}
    found = ask(serve(lambda _: httpx.Response(200, json=cut)))
    assert (found.finish, found.n_out) == ("length", 0)


@pytest.mark.parametrize(
    ("content", "finish", "text"),
    [
        ("\\boxed{7}", "stop", "<think>hm</think>\\boxed{7}"),
        ("", "length", "<think>hm"),
        (None, "length", "<think>hm"),
    ],
)
def test_reasoning_keeps_its_tags_and_stays_open_when_it_was_cut(
    content: str | None, finish: str, text: str
) -> None:
    message = {"content": content, "reasoning_content": "hm"}
    reply = {"choices": [{"message": message, "finish_reason": finish}]}
    assert ask(serve(lambda _: httpx.Response(200, json=reply))).text == text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
        (
            {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "7"}]},
            "<think>hm</think>7",
        ),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                    {"type": "text", "text": "7"},
                ]
            },
            "<think>hm</think>7",
        ),
        ({"content": "7", "reasoning": "hm"}, "<think>hm</think>7"),
    ],
)
def test_content_in_parts_is_joined_and_thinking_is_reasoning(
    message: dict[str, Any], text: str
) -> None:
    reply = {"choices": [{"message": message, "finish_reason": "stop"}]}
    assert ask(serve(lambda _: httpx.Response(200, json=reply))).text == text


@pytest.mark.parametrize(
    "content",
    [3, {"text": "7"}, [3], [{"type": "image"}], [{"text": "7"}], [{"type": "text"}]],
)
def test_content_that_is_neither_text_nor_parts_is_one_error(content: object) -> None:
    reply = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}
    with pytest.raises(ServerError, match="the server's reply"):
        ask(serve(lambda _: httpx.Response(200, json=reply)))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_server_on_this_machine_is_asked_directly(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:1")
    direct = Server(f"http://{host}:1", model="m")
    direct.prepare({})
    assert direct._client._mounts == {}
    far = Server("http://host.example:1", model="m")
    far.prepare({})
    assert far._client._mounts != {}


def test_without_a_name_the_servers_first_model_is_asked() -> None:
    server = serve(
        lambda _: httpx.Response(200, json={"data": [{"id": "first"}, {"id": "second"}]}),
        model=None,
    )
    assert server.identity() == {"engine": "server", "model": "first"}
    with pytest.raises(ServerError, match="names no model"):
        serve(lambda _: httpx.Response(200, json={"data": []}), model=None)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(status: int) -> None:
    replies = [httpx.Response(status), httpx.Response(200, json=CHAT)]
    assert ask(serve(lambda _: replies.pop(0))).text == "\\boxed{7}"


def test_a_lost_connection_is_tried_three_times_and_then_an_error() -> None:
    asked: list[httpx.Request] = []

    def lose(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        raise httpx.ConnectError("refused")

    with pytest.raises(ServerError, match="no answer"):
        ask(serve(lose))
    assert len(asked) == 3


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_is_not_tried_again(status: int) -> None:
    asked: list[httpx.Request] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(status, text="no such model")

    with pytest.raises(ServerError) as caught:
        ask(serve(refuse))
    assert len(asked) == 1
    assert str(status) in str(caught.value.got)


@pytest.mark.parametrize(
    "body", [b"<html>", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"message": 5}]}']
)
def test_a_reply_that_is_no_completion_is_refused(body: bytes) -> None:
    with pytest.raises(ServerError):
        ask(serve(lambda _: httpx.Response(200, content=body)))


@pytest.mark.parametrize("url", ["host:80", "ftp://host", "", "/tmp/socket"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        Server(url, "m")


def test_a_password_in_the_url_is_in_no_record() -> None:
    server = serve(
        lambda _: httpx.Response(200, json=CHAT), url="http://me:secret@host:1/v1?key=secret"
    )
    assert server.evidence() == {"url": "http://host:1/v1"}
    assert "secret" not in json.dumps(server.identity())


@pytest.mark.native
@pytest.mark.slow
def test_a_real_llama_server_counts_tokens_samples_by_seed_and_says_what_was_cut(
    smollm2: Path, tmp_path: Path
) -> None:
    try:
        launched = llama_server.launch(smollm2, Options(n_ctx=2048, n_threads=2), tmp_path)
    except EngineUnavailable as error:
        pytest.skip(f"no llama-server: {error.hint}")
    try:
        with (
            contextlib.closing(Server(launched.url, api_key=launched.key)) as server,
            contextlib.closing(Server(launched.url, "m", api_key="another")) as stranger,
        ):
            seeds = (2**32 - 2, 2**32 - 2, 5)
            first, again, other = (
                ask(server, max_tokens=24, temperature=1.0, seed=seed) for seed in seeds
            )
            with pytest.raises(ServerError):
                ask(stranger)
        assert first.text == again.text != other.text
        assert first.finish == "length"
        assert first.n_out == 24
        assert first.n_reused + first.n_prefilled == again.n_reused + again.n_prefilled > 8
    finally:
        launched.stop()
