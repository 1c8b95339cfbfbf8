"""The OpenAI-compatible front: what it refuses, without a server; what it grafts, with one and the
`openai` package.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from taliesin.engine.embedded import Engine
from taliesin.engine.llama import Settings
from taliesin.errors import EngineUnavailable, UsageError
from taliesin.serve.app import Front, FrontServer
from taliesin.server import process as server
from taliesin.server.backend import ServerEngine
from taliesin.server.process import Options
from taliesin.store.library import Library

Models = Callable[..., Path]
OPTIONS = Options(n_slots=2, n_ctx=2048, n_ubatch=256, n_threads=1)


@contextlib.contextmanager
def fronted(front: Any, **settings: Any) -> Iterator[FrontServer]:
    made = FrontServer(front, **settings)
    thread = threading.Thread(
        target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


# -- without a server ------------------------------------------------------------------------------


@pytest.fixture
def plain() -> Iterator[FrontServer]:
    """A front whose engine is never reached."""
    with fronted(SimpleNamespace(model_id="tiny"), max_body_bytes=2000) as made:
        yield made


def ask(
    made: FrontServer,
    path: str = "/v1/completions",
    body: bytes | str = b"{}",
    method: str = "POST",
    **headers: str,
) -> tuple[int, dict[str, Any], dict[str, str]]:
    host, port = cast(tuple[str, int], made.server_address[:2])
    connection = http.client.HTTPConnection(host, port, timeout=20)
    try:
        sent = {
            "Content-Type": "application/json",
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}"), dict(answer.getheaders())
    finally:
        connection.close()


def test_models_are_listed_and_health_needs_no_key(plain: FrontServer) -> None:
    status, listed, _ = ask(plain, "/v1/models", method="GET")
    assert (status, listed["data"][0]["id"]) == (200, "tiny")
    with fronted(SimpleNamespace(model_id="tiny"), key="a-long-key") as keyed:
        assert ask(keyed, "/health", method="GET")[0] == 200
        assert ask(keyed, "/v1/models", method="GET")[0] == 401
        assert ask(keyed, "/v1/models", method="GET", Authorization="Bearer a-long-kez")[0] == 401
        assert ask(keyed, "/v1/models", method="GET", Authorization="Bearer a-long-key")[0] == 200


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (404, {"path": "/v1/embeddings"}),
        (404, {"path": "/slots/0?action=erase"}),
        (413, {"body": b'"' + b"x" * 3000 + b'"'}),
        (400, {"body": b"[1]"}),
        (400, {"body": b"{"}),
        (400, {"body": b"[" * 1500}),
        (415, {"Content_Type": "text/plain"}),
        (403, {"Host": "evil.example"}),
        (411, {"Content_Length": "-1"}),
        (411, {"Content_Length": ""}),
        (413, {"Content_Length": "9" * 5000}),
        (411, {"Transfer_Encoding": "chunked"}),
        (400, {"body": b'{"prompt": "a", "temperature": NaN}'}),
        (400, {"body": b'{"prompt": "a", "temperature": 1e999}'}),
        (400, {"body": b'{"prompt": "a\\ud800"}'}),
        (501, {"path": "/v1/models", "method": "PUT"}),
    ],
)
def test_what_is_not_a_request_of_ours_is_refused(
    plain: FrontServer, status: int, request_: dict[str, Any]
) -> None:
    found, answer, headers = ask(plain, **request_)
    assert found == status
    assert answer["error"]["code"] == status
    assert not any(name.lower().startswith("access-control") for name in headers)


def test_no_preflight_is_answered(plain: FrontServer) -> None:
    host, port = cast(tuple[str, int], plain.server_address[:2])
    connection = http.client.HTTPConnection(host, port, timeout=20)
    connection.request("OPTIONS", "/v1/completions", headers={"Origin": "https://evil.example"})
    answer = connection.getresponse()
    assert answer.status == 501
    assert answer.getheader("Access-Control-Allow-Origin") is None
    connection.close()


def raw(made: FrontServer, sent: bytes) -> bytes:
    """Everything that comes back for `sent`, to the end of the connection."""
    with socket.create_connection(
        cast(tuple[str, int], made.server_address[:2]), timeout=20
    ) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_body_that_is_not_read_is_not_taken_for_the_next_request(plain: FrontServer) -> None:
    inner = b"GET /health HTTP/1.1\r\n\r\n"
    head = (
        f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        f"{len(inner)}\r\n\r\n".encode()
    )
    assert raw(plain, head + inner).count(b"HTTP/1.1 200") == 1


def test_two_names_at_once_are_refused(plain: FrontServer) -> None:
    assert b" 403 " in raw(
        plain, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    )


def test_a_client_that_resets_its_connection_leaves_no_trace(
    plain: FrontServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(cast(tuple[str, int], plain.server_address[:2])) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(b"POST /v1/comp")
        time.sleep(0.1)
    assert ask(plain, "/health", method="GET")[0] == 200
    assert "Traceback" not in capsys.readouterr().err


class Waiting:
    """A front that answers `chunks` as soon as it may."""

    def __init__(self) -> None:
        self.go, self.asked = threading.Event(), list[bool]()

    @contextlib.contextmanager
    def answer(
        self, _path: str, _body: dict[str, Any], still_wanted: Callable[[], bool]
    ) -> Iterator[Any]:
        self.go.wait(20)
        self.asked.append(still_wanted())
        yield {}, iter([{"choices": []}])


def test_a_client_that_left_while_it_waited_is_known_to_have_left() -> None:
    front = Waiting()
    body = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        b"application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    with fronted(front) as made:
        for stays in (False, True):
            front.go.clear()
            with socket.create_connection(
                cast(tuple[str, int], made.server_address[:2]), timeout=20
            ) as connection:
                connection.sendall(body)
                if not stays:
                    connection.close()
                    time.sleep(0.1)
                front.go.set()
                if stays:
                    assert connection.recv(20).startswith(b"HTTP/1.1 200")
            while len(front.asked) < 1 + stays:
                time.sleep(0.01)
    assert front.asked == [False, True]


def test_an_old_client_gets_a_stream_without_chunks() -> None:
    front = Waiting()
    front.go.set()
    body = b'{"stream": true}'
    head = (
        f"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: "
        f"application/json\r\nContent-Length: {len(body)}"
    )
    with fronted(front) as made:
        answer = raw(made, head.encode() + b"\r\n\r\n" + body)
    assert b"Transfer-Encoding" not in answer
    assert answer.endswith(b'\r\n\r\ndata: {"choices": []}\n\ndata: [DONE]\n\n')


def test_beyond_this_machine_needs_a_key() -> None:
    front = cast(Front, SimpleNamespace())
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(UsageError, match="without a key"):
            FrontServer(front, host)
    with pytest.raises(UsageError, match="key is not usable"):
        FrontServer(front, "0.0.0.0", key="short")


# -- with a server ---------------------------------------------------------------------------------


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
            engine.save(library, text(900, seed), name)
    made = server.launch(model, OPTIONS, folder / "server")
    try:
        with (
            ServerEngine(str(model), server=made) as ready,
            fronted(Front(ready, folder / "library", "tiny")) as front,
        ):
            yield SimpleNamespace(
                front=front, engine=ready, library=folder / "library", model=model
            )
    finally:
        made.stop()


@pytest.fixture
def openai_client(live: SimpleNamespace) -> Iterator[Any]:
    import httpx
    import openai

    with openai.OpenAI(
        base_url=live.front.url,
        api_key="unused",
        max_retries=0,
        http_client=httpx.Client(trust_env=False),
    ) as client:
        yield client


@pytest.mark.native
@pytest.mark.slow
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
        grafted = live.engine.graft_block(block)
        expected = grafted.complete(grafted.query("what is in it?"), 8)
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


@pytest.mark.native
@pytest.mark.slow
def test_the_longest_block_that_begins_the_prompt_is_grafted(
    live: SimpleNamespace, openai_client: Any
) -> None:
    with Library(live.library) as library, library.open("other") as block:
        ids = [*block.header.tokens.tolist(), *range(300, 310)]
        expected = live.engine.graft_block(block).complete(list(range(300, 310)), 6)
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


@pytest.mark.native
@pytest.mark.slow
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


@pytest.mark.native
@pytest.mark.slow
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
    with pytest.raises(openai.BadRequestError, match="one answer"):
        openai_client.completions.create(model="tiny", prompt="x", n=2)
    # llama-server's own name for it, which would compute the block's sequel in a batch and call it
    # exact
    with pytest.raises(openai.BadRequestError, match="one answer"):
        openai_client.completions.create(
            model="tiny", prompt="x", extra_body={"taliesin_block": "notes", "n_cmpl": 2}
        )
    # What llama-server refuses is not worth another try.
    for prompt in ([1, -5], [1, 10**30], "x" * 5000):
        with pytest.raises(openai.BadRequestError, match="refused"):
            openai_client.completions.create(model="tiny", prompt=prompt, max_tokens=1)


@pytest.mark.native
@pytest.mark.slow
def test_progress_chunks_do_not_hide_the_counts(live: SimpleNamespace) -> None:
    body = {
        "prompt": "x",
        "taliesin_block": "notes",
        "stream": True,
        "return_progress": True,
        "max_tokens": 1,
    }
    with live.front.front.answer("/v1/completions", body) as (headers, objects):
        assert headers["X-Taliesin-Proof"].startswith("exact")
        assert list(objects)


@pytest.mark.native
@pytest.mark.slow
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
        front = Front(live.engine, live.library, "tiny")
        with front.answer("/v1/completions", {"prompt": prompt, "max_tokens": 1}) as (
            headers,
            objects,
        ):
            assert headers["X-Taliesin-Block"] == (info.id if content == kept else "none")
            assert list(objects)
    assert info.id[:12] in capsys.readouterr().err


@pytest.mark.native
@pytest.mark.slow
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


@pytest.mark.native
@pytest.mark.slow
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
