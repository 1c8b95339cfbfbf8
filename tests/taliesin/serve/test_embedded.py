"""The embedded engine behind the front, asked with the `openai` package: every answer is a cold
engine's, whatever was asked before.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from taliesin.engine.embedded import Engine
from taliesin.engine.llama import Settings
from taliesin.engine.prefill import PrefixCache
from taliesin.engine.save import save
from taliesin.serve import requests
from taliesin.serve.embedded import Embedded
from taliesin.serve.plan import Begun, Cancellation, Ended, Left
from taliesin.store.library import Library
from tests.taliesin.serve.fronts import address, ask, fronted, post, raw

Models = Callable[..., Path]
pytestmark = pytest.mark.native
SETTINGS = Settings(n_ubatch=64, n_threads=1)
N_CTX = 2048


def text(n: int, seed: int) -> str:
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz    ", k=n))


@pytest.fixture(scope="module", params=[128, 0], ids=["window", "plain"])
def engine(request: pytest.FixtureRequest, tiny_model: Models) -> Iterator[Engine]:
    with Engine(str(tiny_model(window=request.param)), settings=SETTINGS) as engine:
        yield engine


@pytest.fixture
def live(engine: Engine, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A front, the client for it, and a cold one: a cache that is emptied before each request."""
    with (
        PrefixCache(engine, N_CTX) as cache,
        fronted(Embedded(cache, tmp_path / "library", "tiny")) as front,
    ):
        host, port = address(front)
        client = openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="x", max_retries=0)
        yield SimpleNamespace(
            front=front, client=client, cache=cache, library=tmp_path / "library", engine=engine
        )
        client.close()


def chat(live: SimpleNamespace, messages: list[dict[str, str]], **more: Any) -> Any:
    return live.client.chat.completions.create(
        **{"model": "tiny", "messages": messages, "max_tokens": 12, "temperature": 0.0} | more
    )


def said(answer: Any) -> tuple[Any, ...]:
    """What of an answer must not depend on what was asked before."""
    choice = answer.choices[0]
    scores = choice.logprobs and [
        (t.token, t.logprob, [(o.token, o.logprob) for o in t.top_logprobs])
        for t in choice.logprobs.content
    ]
    return choice.message.content, choice.finish_reason, scores, answer.usage.prompt_tokens


def cold(live: SimpleNamespace, messages: list[dict[str, str]], **more: Any) -> Any:
    live.cache.forget()
    answer = chat(live, messages, **more)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    return answer


def test_conversations_are_answered_as_by_a_cold_engine(live: SimpleNamespace) -> None:
    system = {"role": "system", "content": text(400, 1)}
    talks: list[list[dict[str, str]]] = [[system], [system], []]
    rng = random.Random(2)
    told: list[tuple[list[dict[str, str]], Any]] = []
    cached = 0
    for turn in range(12):
        talk = rng.choice(talks)
        talk.append({"role": "user", "content": text(rng.randint(5, 150), 10 + turn)})
        answer = chat(live, talk, logprobs=True, top_logprobs=3)
        told.append((list(talk), answer))
        cached += answer.usage.prompt_tokens_details.cached_tokens
        talk.append({"role": "assistant", "content": answer.choices[0].message.content})
    assert cached > 2000
    for messages, answer in told:
        assert said(answer) == said(cold(live, messages, logprobs=True, top_logprobs=3))


def test_a_stream_says_the_same_and_counts(live: SimpleNamespace) -> None:
    messages = [{"role": "user", "content": text(300, 3)}]
    whole = chat(live, messages, logprobs=True)
    chunks = list(
        chat(live, messages, logprobs=True, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    parts = [c.choices[0] for c in chunks if c.choices]
    assert "".join(p.delta.content or "" for p in parts) == whole.choices[0].message.content
    assert parts[-1].finish_reason == whole.choices[0].finish_reason
    scores = [t.logprob for p in parts if p.logprobs for t in p.logprobs.content]
    assert scores == [t.logprob for t in whole.choices[0].logprobs.content]
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )
    assert usage.prompt_tokens_details.cached_tokens >= 256


def test_seeds_stops_lengths_and_several_answers(live: SimpleNamespace) -> None:
    messages = [{"role": "user", "content": text(200, 4)}]

    def drawn(**more: Any) -> list[str]:
        answer = chat(live, messages, temperature=1.5, max_tokens=16, **more)
        return [choice.message.content for choice in answer.choices]

    assert drawn(seed=7) == drawn(seed=7)
    first, second, third = drawn(seed=7, n=3)
    assert [first] == drawn(seed=7)
    assert len({first, second, third}) > 1
    endless = {str(token): -100 for token in live.engine.model.end_of_generation}
    greedy = chat(live, messages, max_tokens=16, logit_bias=endless)
    full = greedy.choices[0].message.content
    assert greedy.choices[0].finish_reason == "length"
    stop = full[5:7]
    ended = chat(live, messages, max_tokens=16, stop=[stop, "\0\0"], logit_bias=endless)
    assert ended.choices[0].finish_reason == "stop"
    assert ended.choices[0].message.content == full[: full.index(stop)]


def test_an_answer_keeps_to_a_schema(live: SimpleNamespace) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    answer = chat(
        live,
        [{"role": "user", "content": "Is it?"}],
        max_tokens=200,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "verdict", "schema": schema},
        },
    )
    assert set(json.loads(answer.choices[0].message.content)) == {"ok"}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"mirostat": 2}, "mirostat"),
        ({"unheard_of": 1}, "unheard_of"),
        ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'}, "grammar"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    live: SimpleNamespace, fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=name):
        chat(live, [{"role": "user", "content": "x"}], extra_body=fields)


def test_texts_ids_and_what_does_not_fit(live: SimpleNamespace) -> None:
    prompt = text(150, 5)
    create = live.client.completions.create
    by_text = create(model="tiny", prompt=prompt, max_tokens=8, temperature=0, logprobs=2)
    ids = live.engine.model.tokenize(prompt, special=True)
    if live.engine.model.adds_bos:
        ids = [live.engine.model.bos, *ids]
    by_ids = create(model="tiny", prompt=ids, max_tokens=8, temperature=0, logprobs=2)
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert by_ids.choices[0].logprobs == by_text.choices[0].logprobs
    assert by_ids.usage.prompt_tokens_details.cached_tokens == 128
    with pytest.raises(openai.BadRequestError, match="does not fit"):
        create(model="tiny", prompt=text(N_CTX + 10, 6))
    with pytest.raises(openai.BadRequestError, match="no token"):
        create(model="tiny", prompt=[1 << 30])


def test_a_saved_block_is_found_and_can_be_named(live: SimpleNamespace) -> None:
    with Library(live.library) as library:
        saved = save(live.engine, library, text(900, 7), "notes")[0]
        save(live.engine, library, text(100, 8), "short")  # ends between two pieces
    n = len(saved.header.tokens)
    assert n % SETTINGS.n_ubatch == 0
    live.engine.drop_context()
    ids = [*saved.header.tokens.tolist(), *saved.header.tail.tolist(), 300, 301, 302]
    create = live.client.completions.create
    warm = create(model="tiny", prompt=ids, max_tokens=10, temperature=0, logprobs=3)
    assert warm.usage.prompt_tokens_details.cached_tokens == n
    named = chat(
        live,
        [{"role": "user", "content": "Who?"}],
        extra_body={"taliesin_block": "notes"},
        logprobs=True,
    )
    assert named.usage.prompt_tokens_details.cached_tokens == n
    live.cache.forget()
    live.front.app.service.blocks.library = live.library.parent / "none"
    after = create(model="tiny", prompt=ids, max_tokens=10, temperature=0, logprobs=3)
    assert after.usage.prompt_tokens_details.cached_tokens == 0
    assert after.choices[0] == warm.choices[0]
    live.front.app.service.blocks.library = live.library
    with pytest.raises(openai.BadRequestError, match="no cold run"):
        chat(
            live,
            [{"role": "user", "content": "Who?"}],
            extra_body={"taliesin_block": "short"},
        )


def test_headers_counts_and_an_empty_library(live: SimpleNamespace) -> None:
    body = json.dumps({"prompt": text(300, 9), "max_tokens": 4})
    status, _, headers = ask(live.front, body=body)
    assert (status, headers["x-taliesin-proof"]) == (200, "a cold run")
    status, _, headers = ask(live.front, body=body)
    assert headers["x-taliesin-tokens-skipped"] == "256"
    assert "cold run's bits" in headers["x-taliesin-proof"]
    page = raw(live.front, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert b"taliesin_cached_tokens_total 256" in page
    assert b"taliesin_cache_live_tokens_total 256" in page


def test_a_request_may_ask_for_a_cold_run(live: SimpleNamespace) -> None:
    messages = [{"role": "user", "content": text(300, 31)}]
    warm = [chat(live, messages, logprobs=True) for _ in range(2)]
    assert warm[1].usage.prompt_tokens_details.cached_tokens >= 256
    fresh = chat(live, messages, logprobs=True, extra_body={"cache_prompt": False})
    assert fresh.usage.prompt_tokens_details.cached_tokens == 0
    assert said(fresh) == said(warm[1])
    again = chat(live, messages, logprobs=True)
    assert said(again) == said(fresh)


def test_a_client_that_leaves_ends_its_computation(live: SimpleNamespace) -> None:
    import socket

    endless = {str(token): -100 for token in live.engine.model.end_of_generation}
    fields = {"prompt": text(100, 10), "max_tokens": 1900, "logit_bias": endless}
    body = json.dumps(fields).encode()
    with socket.create_connection(address(live.front)) as connection:
        connection.sendall(post(body))
        while not live.front.app.metrics.computing:
            time.sleep(0.01)
    while live.front.app.metrics.computing:  # a hang is found by the test's own limit
        time.sleep(0.01)
    assert live.front.app.metrics.left == 1
    messages = [{"role": "user", "content": text(200, 11)}]
    after = chat(live, messages, logprobs=True)
    assert said(after) == said(cold(live, messages, logprobs=True))


def test_a_request_that_ended_does_not_end_the_next_one(live: SimpleNamespace) -> None:
    """The front cancels every request when its answer was read, which may be long after."""
    service = live.front.app.service
    jobs, cancellations = [], [Cancellation(), Cancellation()]
    for seed in (13, 14):
        body = json.dumps({"prompt": text(200, seed), "max_tokens": 8, "temperature": 0})
        jobs.append(service.prepare(requests.read(requests.TEXT, body.encode())))
    assert isinstance(list(jobs[0](cancellations[0]))[-1], Ended)
    second = jobs[1](cancellations[1])
    assert isinstance(next(second), Begun)
    cancellations[0].cancel()
    assert isinstance(list(second)[-1], Ended)
    # And the one that computes does end.
    cancellations[1].cancel()
    third = jobs[0](cancellations[1])
    with pytest.raises(Left):
        list(third)


def test_clients_at_once_get_their_own_answers(live: SimpleNamespace) -> None:
    asked = [
        [{"role": "system", "content": text(300, 12)}, {"role": "user", "content": text(60, i)}]
        for i in range(6)
    ]
    answers: dict[int, Any] = {}

    def one(index: int) -> None:
        answers[index] = chat(live, asked[index], logprobs=True)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(asked))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, messages in enumerate(asked):
        assert said(answers[index]) == said(cold(live, messages, logprobs=True))
