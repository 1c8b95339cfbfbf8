"""llama-server behind the front, asked with the `openai` package: what is grafted, honoured,
refused, given up.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taliesin.engine.embedded import Engine
from taliesin.engine.llama import Settings
from taliesin.engine.save import save
from taliesin.errors import EngineUnavailable
from taliesin.serve import requests
from taliesin.serve.listen import FrontServer
from taliesin.serve.llama_server import LlamaServer
from taliesin.serve.plan import Begun, Cancellation, Ended, Event
from taliesin.server import process as server
from taliesin.server.backend import ServerBackend
from taliesin.server.options import Options
from taliesin.store.library import Library
from tests.taliesin.serve.fronts import address, fronted, post

Models = Callable[..., Path]
OPTIONS = Options(n_slots=2, n_ctx=2048, n_ubatch=256, n_threads=1)
pytestmark = [pytest.mark.native, pytest.mark.slow]


def events(service: LlamaServer, body: dict[str, Any], path: str = requests.TEXT) -> list[Event]:
    """Everything that one request brings."""
    job = service.prepare(requests.read(path, json.dumps(body).encode()))
    return list(job(Cancellation()))


def text(n: int, seed: int) -> str:
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz    ", k=n))


@pytest.fixture(scope="module")
def live(tiny_model: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A front on a server of two slots, and a library with the blocks `notes` and `other`."""
    try:
        server.find_binary()
    except EngineUnavailable as error:
        pytest.skip(f"no llama-server: {error.hint}")
    folder, model = tmp_path_factory.mktemp("serve"), tiny_model()
    with (
        Library(folder / "library") as library,
        Engine(str(model), settings=Settings(n_ubatch=256, n_threads=1)) as engine,
    ):
        for seed, name in enumerate(("notes", "other")):
            save(engine, library, text(900, seed), name)
    made = server.launch(model, OPTIONS, folder / "server")
    try:
        with (
            ServerBackend(str(model), server=made) as ready,
            fronted(LlamaServer(ready, folder / "library", "tiny")) as front,
        ):
            yield SimpleNamespace(
                front=front,
                service=front.app.service,
                engine=ready,
                library=folder / "library",
                model=model,
            )
    finally:
        made.stop()


def client_of(front: FrontServer) -> Any:
    import httpx
    import openai

    return openai.OpenAI(
        base_url=front.url,
        api_key="unused",
        max_retries=0,
        http_client=httpx.Client(trust_env=False),
    )


@pytest.fixture
def openai_client(live: SimpleNamespace) -> Iterator[Any]:
    with client_of(live.front) as client:
        yield client


def test_a_named_block_answers_a_chat_as_the_engine_does(
    live: SimpleNamespace, openai_client: Any
) -> None:
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "what is in it?"}],
        "max_tokens": 8,
        "temperature": 0,
        "extra_body": {"taliesin_block": "notes", "samplers": ["temperature"]},
    }
    raw = openai_client.chat.completions.with_raw_response.create(**asked)
    answer = raw.parse()
    with Library(live.library) as library, library.open("notes") as block:
        grafted = live.engine.graft(block)
        expected = grafted.place.complete(grafted.query("what is in it?"), 8)
        assert raw.headers["x-taliesin-block"] == block.block_id
        assert raw.headers["x-taliesin-tokens-skipped"] == str(len(block.header.tokens))
    assert raw.headers["x-taliesin-proof"].startswith("exact")
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.completion_tokens == len(expected.tokens)

    streamed = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in openai_client.chat.completions.create(**asked, stream=True)
        if chunk.choices
    )
    assert streamed == expected.text


def test_the_longest_block_that_begins_the_prompt_is_grafted(
    live: SimpleNamespace, openai_client: Any
) -> None:
    with Library(live.library) as library, library.open("other") as block:
        ids = [*block.header.tokens.tolist(), *range(300, 310)]
        expected = live.engine.graft(block).place.complete(list(range(300, 310)), 6)
        n_block = len(block.header.tokens)
    asked = {
        "model": "tiny",
        "prompt": ids,
        "max_tokens": 6,
        "temperature": 0,
        "extra_body": {"samplers": ["temperature"]},
    }
    raw = openai_client.completions.with_raw_response.create(**asked)
    assert raw.headers["x-taliesin-tokens-skipped"] == str(n_block)
    assert raw.parse().choices[0].text == expected.text
    streamed = "".join(
        c.choices[0].text
        for c in openai_client.completions.create(**asked, stream=True)
        if c.choices
    )
    assert streamed == expected.text


def test_other_requests_pass_through_and_are_fresh(
    live: SimpleNamespace, openai_client: Any
) -> None:
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 6,
        "temperature": 0,
    }
    first = openai_client.chat.completions.with_raw_response.create(**asked)
    second = openai_client.chat.completions.with_raw_response.create(**asked)
    assert first.headers["x-taliesin-block"] == "none"
    assert first.headers["x-taliesin-proof"] == "not grafted"
    assert first.parse().choices[0].message.content == second.parse().choices[0].message.content
    parts = [
        c.choices[0].delta.content or ""
        for c in openai_client.chat.completions.create(**asked, stream=True)
        if c.choices
    ]
    assert "".join(parts) == first.parse().choices[0].message.content


def test_a_wrong_block_or_question_is_a_clear_error(
    live: SimpleNamespace, openai_client: Any
) -> None:
    import openai

    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.NotFoundError, match="no block"):
        openai_client.chat.completions.create(
            model="tiny", messages=messages, extra_body={"taliesin_block": "absent"}
        )
    for body in ({"messages": messages * 2}, {"messages": [{"role": "system", "content": "x"}]}):
        with pytest.raises(openai.BadRequestError, match="one question"):
            openai_client.chat.completions.create(
                model="tiny", **body, extra_body={"taliesin_block": "notes"}
            )
    with pytest.raises(openai.BadRequestError, match="field n"):
        openai_client.completions.create(model="tiny", prompt="x", n=2)
    # llama-server's own name for it, which would compute the block's sequel in a batch and call it
    # exact
    with pytest.raises(openai.BadRequestError, match="field n"):
        openai_client.completions.create(
            model="tiny", prompt="x", extra_body={"taliesin_block": "notes", "n_cmpl": 2}
        )
    # What llama-server refuses is not worth another try.
    for prompt in ([1, -5], [1, 10**30], [1, 10**6], "x" * 5000):
        with pytest.raises(openai.BadRequestError, match=r"refused|no list of token ids"):
            openai_client.completions.create(model="tiny", prompt=prompt, max_tokens=1)


def test_progress_chunks_do_not_hide_the_counts(live: SimpleNamespace) -> None:
    body = {
        "prompt": "x",
        "taliesin_block": "notes",
        "stream": True,
        "return_progress": True,
        "max_tokens": 1,
    }
    begun, *parts = events(live.service, body)
    assert isinstance(begun, Begun)
    assert begun.proof.startswith("exact")
    assert isinstance(parts[-1], Ended)
    assert parts[-1].usage.cached == begun.skipped


def test_a_damaged_block_is_not_used_and_the_request_is_answered(
    live: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with Library(live.library) as library:
        info = library.info("notes")
        with library.open("notes") as block:
            path, prompt = block.path, [*block.header.tokens.tolist(), 300]
    kept = path.read_bytes()
    damaged = bytearray(kept)
    damaged[len(kept) // 2] ^= 1
    for content in (bytes(damaged), kept[:100], kept):
        path.unlink()
        path.write_bytes(content)
        service = LlamaServer(live.engine, live.library, "tiny")
        begun, *_parts = events(service, {"prompt": prompt, "max_tokens": 1})
        assert isinstance(begun, Begun)
        assert begun.block == (info.id if content == kept else None)
    assert info.id[:12] in capsys.readouterr().err


# -- reports from outside --------------------------------------------------------------------------


def test_content_in_parts_is_the_text(live: SimpleNamespace, openai_client: Any) -> None:
    """lemonade#629, qwisp#83"""
    told = []
    for content in ("what is it?", [{"type": "text", "text": t} for t in ("what ", "is it?")]):
        told.append(
            openai_client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": content}],
                max_tokens=6,
                temperature=0,
                extra_body={"taliesin_block": "notes"},
            )
        )
    assert told[0].choices[0].message.content == told[1].choices[0].message.content
    assert told[0].usage.prompt_tokens == told[1].usage.prompt_tokens


def test_fields_beside_a_named_block_are_honoured_or_named(
    live: SimpleNamespace, openai_client: Any
) -> None:
    """llama.cpp#24096, FastFlowLM#554"""
    import openai

    def asked(**fields: Any) -> Any:
        return openai_client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "x"}],
            max_tokens=40,
            temperature=0,
            extra_body={"taliesin_block": "notes"},
            **fields,
        )

    schema = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert json.loads(asked(response_format=form).choices[0].message.content) == {"a": "b"}
    steps = asked(logprobs=True, top_logprobs=5).choices[0].logprobs.content
    assert [len(step.top_logprobs) for step in steps] == [5] * len(steps)
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for name, value in (("tools", [tool]), ("tool_choice", "required"), ("audio", {})):
        with pytest.raises(openai.BadRequestError, match=name):
            asked(**{name: value})
    assert asked(tools=[], tool_choice="none", user="me").choices


def test_usage_ends_a_stream_that_asks_for_it(openai_client: Any) -> None:
    for block in ({}, {"taliesin_block": "notes"}):
        for wanted in (False, True):
            chunks = list(
                openai_client.chat.completions.create(
                    model="tiny",
                    messages=[{"role": "user", "content": "x"}],
                    max_tokens=4,
                    stream=True,
                    stream_options={"include_usage": wanted},
                    extra_body=block,
                )
            )
            counted = [chunk.usage for chunk in chunks if chunk.usage]
            assert len(counted) == wanted
            if wanted:
                assert not chunks[-1].choices
                assert (counted[0].prompt_tokens_details.cached_tokens > 0) == bool(block)


def test_a_template_that_raises_is_the_clients_fault(tiny_model: Models, tmp_path: Path) -> None:
    """llama.cpp#19851"""
    import openai

    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{% if loop.index0 and m.role == messages[loop.index0 - 1].role %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    held = server.launch(
        tiny_model(),
        OPTIONS,
        tmp_path / "server",
        arguments=("--chat-template-file", str(template)),
    )
    try:
        with (
            ServerBackend(str(tiny_model()), server=held) as engine,
            fronted(LlamaServer(engine, tmp_path / "none", "tiny")) as front,
            client_of(front) as client,
        ):
            with pytest.raises(openai.BadRequestError, match="roles must alternate"):
                client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": "x"}] * 2
                )
            for content in ([{"type": "image_url", "image_url": {"url": "x"}}], [1]):
                with pytest.raises(openai.BadRequestError):
                    client.chat.completions.create(
                        model="tiny",
                        messages=[{"role": "user", "content": content}],
                    )
            with pytest.raises(openai.BadRequestError, match="reasoning"):
                client.chat.completions.create(
                    model="tiny",
                    messages=[{"role": "user", "content": "x"}],
                    extra_body={"reasoning_format": "nonsense"},
                )
            # No library, and it answers.
            assert client.completions.create(model="tiny", prompt="x", max_tokens=1).choices
    finally:
        held.stop()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_computation_and_changes_no_other_answer(
    live: SimpleNamespace, openai_client: Any, stream: bool
) -> None:
    """llama.cpp#24496, litellm#30245"""
    asked = {"model": "tiny", "prompt": "abc", "max_tokens": 12, "temperature": 0, "logprobs": 5}
    alone = openai_client.completions.create(**asked).choices[0]
    left = live.front.app.metrics.left
    body = json.dumps(
        {"prompt": "x y z", "max_tokens": 1900, "stream": stream, "ignore_eos": True}
    ).encode()
    with socket.create_connection(address(live.front), timeout=60) as connection:
        connection.sendall(post(body))
        while not live.front.app.metrics.computing:
            time.sleep(0.01)
        time.sleep(0.2)
    after = openai_client.completions.create(**asked).choices[0]
    assert live.front.app.metrics.left == left + 1
    assert (after.text, after.logprobs) == (alone.text, alone.logprobs)
    slots = live.engine.server.client.call("GET", "/slots")
    assert not any(slot["is_processing"] for slot in slots)


def test_a_prompt_in_a_list_is_the_prompt(live: SimpleNamespace, openai_client: Any) -> None:
    """llama-cpp-python#726"""
    import openai

    with Library(live.library) as library, library.open("other") as block:
        ids = [*block.header.tokens.tolist(), *range(300, 310)]
    answers = [
        openai_client.completions.with_raw_response.create(
            model="tiny", prompt=prompt, max_tokens=4, temperature=0
        )
        for prompt in (ids, [ids])
    ]
    assert answers[0].headers["x-taliesin-tokens-skipped"] == str(len(ids) - 10)
    assert answers[1].headers["x-taliesin-tokens-skipped"] == str(len(ids) - 10)
    texts = [
        openai_client.completions.create(model="tiny", prompt=prompt, max_tokens=4, temperature=0)
        .choices[0]
        .text
        for prompt in ("abc", ["abc"])
    ]
    assert texts[0] == texts[1]
    with pytest.raises(openai.BadRequestError, match="several prompts"):
        openai_client.completions.create(model="tiny", prompt=["a", "b"])


def test_models_are_named_as_openai_does(openai_client: Any) -> None:
    """vllm#1572, ollama-js#102"""
    assert [model.id for model in openai_client.models.list(extra_query={"limit": 5})] == ["tiny"]
    assert openai_client.models.retrieve("tiny").id == "tiny"


def test_many_clients_get_their_solo_answers(live: SimpleNamespace, openai_client: Any) -> None:
    def asked(index: int) -> str:
        answer = openai_client.completions.create(
            model="tiny",
            prompt=text(20 + index, index),
            max_tokens=6,
            temperature=0,
            extra_body={"taliesin_block": "notes"} if index % 2 else {},
        )
        told: str = answer.choices[0].text
        return told

    alone = [asked(index) for index in range(8)]
    together: dict[int, str] = {}

    def one(index: int) -> None:
        together[index] = asked(index)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[index] for index in range(8)] == alone


# -- the command -----------------------------------------------------------------------------------


def test_the_command_ends_with_its_server(tiny_model: Models, tmp_path: Path) -> None:
    try:
        server.find_binary()
    except EngineUnavailable as error:
        pytest.skip(f"no llama-server: {error.hint}")
    command = [
        sys.executable,
        "-m",
        "taliesin",
        "serve",
        "--port",
        "0",
        "--model",
        str(tiny_model()),
    ]
    environment = {
        **os.environ,
        "TALIESIN_SERVER_RUN": str(tmp_path),
        "TALIESIN_LIBRARY": str(tmp_path / "library"),
    }
    with subprocess.Popen(
        [*command, "--threads", "1", "--ctx", "512"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        children = (
            Path(f"/proc/{process.pid}/task/{process.pid}/children")
            .read_text(encoding="ascii")
            .split()
        )
        os.kill(int(children[0]), signal.SIGKILL)
        assert process.wait() == 35
        assert process.stderr is not None
        assert "has ended" in process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_command_leaves_no_server_behind(
    tiny_model: Models, tmp_path: Path, number: int
) -> None:
    try:
        server.find_binary()
    except EngineUnavailable as error:
        pytest.skip(f"no llama-server: {error.hint}")
    command = [
        sys.executable,
        "-m",
        "taliesin",
        "serve",
        "--port",
        "0",
        "--model",
        str(tiny_model()),
    ]
    environment = {
        **os.environ,
        "TALIESIN_SERVER_RUN": str(tmp_path / "run"),
        "TALIESIN_LIBRARY": str(tmp_path / "library"),
    }
    with subprocess.Popen(
        [*command, "--threads", "1", "--ctx", "512"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        children = (
            Path(f"/proc/{process.pid}/task/{process.pid}/children")
            .read_text(encoding="ascii")
            .split()
        )
        assert len(children) == 1
        process.send_signal(number)
        assert process.wait() == (143 if number == signal.SIGTERM else -signal.SIGKILL)
        until = time.monotonic() + 30
        while server.birth(int(children[0])) and time.monotonic() < until:
            time.sleep(0.05)
        assert not server.birth(int(children[0]))
