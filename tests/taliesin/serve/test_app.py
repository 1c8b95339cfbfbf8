"""The front over HTTP, with a service that is told what to answer: who may ask, what is refused,
turns, streams, leaving clients, counts.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from taliesin.errors import ContextFull, RecipeMismatch, ServerError, StoreMissing, UsageError
from taliesin.serve import app
from taliesin.serve.listen import FrontServer
from taliesin.serve.plan import Begun, Cancellation, Ended, Event, Job, Part, Usage
from taliesin.serve.requests import Request
from tests.taliesin.serve.fronts import Scripted, address, ask, fronted, post, raw


@pytest.fixture
def plain() -> Iterator[FrontServer]:
    """A front whose bodies are at most 2,000 bytes."""
    with fronted(Scripted(), max_body_bytes=2000) as made:
        yield made


# -- who may ask -----------------------------------------------------------------------------------


def test_models_are_listed_and_health_needs_no_key(plain: FrontServer) -> None:
    status, listed, _ = ask(plain, "/v1/models", method="GET")
    assert (status, listed["data"][0]["id"]) == (200, "tiny")
    with fronted(Scripted(), key="a-long-key") as keyed:
        assert ask(keyed, "/health", method="GET")[0] == 200
        for path in ("/v1/models", "/metrics"):
            assert ask(keyed, path, method="GET")[0] == 401
            assert ask(keyed, path, method="GET", Authorization="Bearer a-long-kez")[0] == 401
        assert ask(keyed, "/v1/models", method="GET", Authorization="Bearer a-long-key")[0] == 200


def test_a_model_is_found_by_its_name_and_a_query_string_changes_nothing(
    plain: FrontServer,
) -> None:
    assert ask(plain, "/v1/models?limit=5", method="GET")[0] == 200
    status, known, _ = ask(plain, "/v1/models/tiny", method="GET")
    assert (status, known["id"], known["object"]) == (200, "tiny", "model")
    assert ask(plain, "/v1/models/other", method="GET")[0] == 404
    assert ask(plain, "/health?x=1", method="GET")[1] == {"status": "ok"}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8089", 200),
        ("LocalHost.", 200),
        ("127.0.0.1:1", 200),
        ("127.9.9.9", 200),
        ("[::1]:8089", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("0.0.0.0", 403),
        ("[::2]", 403),
    ],
)
def test_only_loopback_names_are_served_without_a_key(
    plain: FrontServer, host: str, status: int
) -> None:
    assert ask(plain, "/v1/models", method="GET", Host=host)[0] == status


def test_the_front_listens_on_the_ipv6_loopback_too() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with fronted(Scripted(), "::1") as made:
        assert made.url.startswith("http://[::1]:")
        assert ask(made, "/v1/models", method="GET")[0] == 200


def test_beyond_this_machine_needs_a_key() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(UsageError, match="without a key"):
            FrontServer(Scripted(), host)
    with pytest.raises(UsageError, match="key is not usable"):
        FrontServer(Scripted(), "0.0.0.0", key="short")


def test_an_address_that_cannot_be_bound_is_one_error(plain: FrontServer) -> None:
    with pytest.raises(UsageError, match="cannot be bound"):
        FrontServer(Scripted(), "127.0.0.1", plain.server_address[1])
    with pytest.raises(UsageError, match="cannot be bound"):
        FrontServer(Scripted(), "a" * 300 + ".example", key="a-long-key")


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (404, {"path": "/v1/embeddings"}),
        (404, {"path": "/slots/0?action=erase"}),
        (405, {"method": "GET"}),
        (405, {"path": "/v1/models", "method": "PUT"}),
        (413, {"body": b'"' + b"x" * 3000 + b'"'}),
        (400, {"body": b"[1]"}),
        (400, {"body": b"{"}),
        (400, {"body": b"\xff\xfe{}"}),
        (400, {"body": b"[" * 1500}),
        (415, {"Content_Type": "text/plain"}),
        (415, {"Content_Type": "application/json-seq"}),
        (403, {"Host": "evil.example"}),
        (400, {"Content_Length": "-1"}),
        (400, {"Content_Length": "9" * 5000}),
        (413, {"Content_Length": "9" * 15}),
        (411, {"Transfer_Encoding": "chunked"}),
        (400, {"body": b'{"prompt": "a", "temperature": NaN}'}),
        (400, {"body": b'{"prompt": "a", "temperature": 1e999}'}),
        (400, {"body": b'{"prompt": "a\\ud800"}'}),
        (400, {"body": b'{"prompt": "a", "seed": ' + b"9" * 1500 + b"}"}),
        (400, {"body": b'{"prompt": "a", "prompt": "b"}'}),
    ],
)
def test_what_is_not_a_request_of_ours_is_refused(
    plain: FrontServer, status: int, request_: dict[str, Any]
) -> None:
    found, answer, headers = ask(plain, **request_)
    assert found == status
    assert answer["error"]["code"] == status
    assert not any(name.lower().startswith("access-control") for name in headers)


def test_a_json_body_may_name_its_charset(plain: FrontServer) -> None:
    assert ask(plain, Content_Type="Application/JSON; charset=utf-8")[0] == 200


def test_no_preflight_is_answered(plain: FrontServer) -> None:
    for path in ("/v1/completions", "/v1/models", "/other"):
        status, _, headers = ask(plain, path, b"", "OPTIONS", Origin="https://evil.example")
        assert status in (404, 405)
        assert not any(name.lower().startswith("access-control") for name in headers)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("x"), 400),
        (StoreMissing("no block"), 404),
        (RecipeMismatch("x"), 409),
        (ContextFull("x"), 400),
        (ServerError("x"), 502),
        (ZeroDivisionError("x"), 500),
    ],
)
def test_each_failure_has_its_status(
    error: Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(Scripted):
        def prepare(self, request: Request) -> Job:
            if "prepare" in str(request.fields.model):
                raise error

            def job(_: Cancellation) -> Iterator[Event]:
                raise error
                yield

            return job

    with fronted(Failing()) as made:
        for model in ("prepare", "job"):
            for stream in (False, True):
                body = json.dumps({"model": model, "prompt": "x", "stream": stream})
                found, answer, _ = ask(made, body=body)
                assert (found, answer["error"]["code"]) == (status, status)
    assert ("ZeroDivisionError" in capsys.readouterr().err) == (status == 500)


def test_a_stream_that_fails_ends_with_an_error_and_without_done() -> None:
    class Failing(Scripted):
        def prepare(self, request: Request) -> Job:
            def job(_: Cancellation) -> Iterator[Event]:
                yield Begun(None, 0, "not grafted")
                yield Part({"choices": []})
                raise ServerError("gone")

            return job

    with fronted(Failing()) as made:
        answer = raw(made, post(b'{"prompt": "x", "stream": true}', "1.0"))
    lines = [line for line in answer.partition(b"\r\n\r\n")[2].split(b"\n\n") if line]
    assert b"[DONE]" not in answer
    assert json.loads(lines[-1].removeprefix(b"data: "))["error"]["message"] == "gone"


# -- answers ---------------------------------------------------------------------------------------


def test_an_answer_carries_what_was_done_in_its_headers() -> None:
    begun = Begun("ab" * 32, 5, "exact: same recipe\u2026")
    with fronted(Scripted(begun, Part({"a": 1}), Ended(Usage()))) as made:
        status, answer, headers = ask(made)
        assert (status, answer) == (200, {"a": 1})
        assert headers["x-taliesin-block"] == "ab" * 32
        assert headers["x-taliesin-tokens-skipped"] == "5"
        assert headers["x-taliesin-proof"] == "exact: same recipe?"
        stream = raw(made, post(b'{"prompt": "x", "stream": true}', "1.0"))
        assert b"x-taliesin-block: abab" in stream


def test_an_old_client_gets_a_stream_without_chunks() -> None:
    with fronted(Scripted()) as made:
        answer = raw(made, post(b'{"prompt": "x", "stream": true}', "1.0"))
    assert b"Transfer-Encoding" not in answer
    assert answer.endswith(b'\r\n\r\ndata: {"choices": []}\n\ndata: [DONE]\n\n')


def test_a_stream_that_waits_says_so_in_comments() -> None:
    service = Scripted()
    service.go.clear()
    with fronted(service) as made:
        made.app.comment_seconds = 0.05
        with socket.create_connection(address(made), timeout=20) as connection:
            connection.sendall(post(b'{"prompt": "x", "stream": true}', "1.0"))
            got = b""
            while got.count(b": waiting\n\n") < 2:
                got += connection.recv(65536)
            service.go.set()
            while part := connection.recv(65536):
                got += part
    assert got.startswith(b"HTTP/1.1 200")
    assert b": X-Taliesin-Block: none\n" in got
    assert got.endswith(b"data: [DONE]\n\n")


def test_requests_are_answered_one_at_a_time_in_their_order() -> None:
    service = Scripted()
    service.go.clear()
    with fronted(service) as made:
        threads = []
        for index in range(5):
            body = json.dumps({"prompt": str(index)})
            threads.append(threading.Thread(target=ask, args=(made,), kwargs={"body": body}))
            threads[-1].start()
            while made.app.metrics.computing + made.app.metrics.waiting <= index:
                time.sleep(0.005)
        assert service.began.acquire(timeout=20)
        assert not service.began.acquire(blocking=False)
        assert (made.app.metrics.computing, made.app.metrics.waiting) == (1, 4)
        service.go.set()
        for thread in threads:
            thread.join()
    assert [request.body["prompt"] for request in service.computed] == ["0", "1", "2", "3", "4"]


def test_more_requests_than_may_wait_are_told_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "MOST_REQUESTS", 1)
    service = Scripted()
    service.go.clear()
    with fronted(service) as made:
        first = threading.Thread(target=ask, args=(made,))
        first.start()
        assert service.began.acquire(timeout=20)
        status, _, headers = ask(made)
        assert (status, headers["retry-after"]) == (503, "1")
        service.go.set()
        first.join()
        assert ask(made)[0] == 200


def test_bodies_that_wait_are_bounded_together() -> None:
    service = Scripted()
    service.go.clear()
    body = b'{"prompt": "' + b"x" * 900 + b'"}'
    with fronted(service, max_body_bytes=1000) as made:
        threads = []
        for _ in range(app.MOST_BODIES):
            threads.append(threading.Thread(target=ask, args=(made,), kwargs={"body": body}))
            threads[-1].start()
        while len(service.asked) < app.MOST_BODIES:
            time.sleep(0.005)
        assert ask(made, body=body)[0] == 503
        service.go.set()
        for thread in threads:
            thread.join()
        assert ask(made, body=body)[0] == 200


# -- clients that leave ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_computation(stream: bool) -> None:
    service = Scripted()
    service.go.clear()
    with fronted(service) as made:
        body = json.dumps({"prompt": "x", "stream": stream}).encode()
        with socket.create_connection(address(made), timeout=20) as connection:
            connection.sendall(post(body))
            assert service.began.acquire(timeout=20)
            assert not service.cancelled.acquire(blocking=False)
        assert service.cancelled.acquire(timeout=20)
        assert ask(made)[0] == 200
        assert made.app.metrics.left == 1


def test_a_client_that_left_while_it_waited_is_never_computed() -> None:
    service = Scripted()
    service.go.clear()
    with fronted(service) as made:
        first = threading.Thread(target=ask, args=(made,))
        first.start()
        assert service.began.acquire(timeout=20)
        with socket.create_connection(address(made), timeout=20) as connection:
            connection.sendall(post())
            while made.app.metrics.waiting != 1:
                time.sleep(0.005)
        while made.app.metrics.waiting:
            time.sleep(0.005)
        service.go.set()
        first.join()
        assert ask(made)[0] == 200
    assert service.began.acquire(blocking=False)  # the last one's
    assert not service.began.acquire(blocking=False)


def test_a_client_that_does_not_read_keeps_no_turn() -> None:
    many = [Part({"text": "x" * 50_000}) for _ in range(200)]
    service = Scripted(Begun(None, 0, ""), *many, Ended(Usage()))
    with (
        fronted(service) as made,
        socket.create_connection(address(made), timeout=20) as connection,
    ):
        connection.sendall(post(b'{"prompt": "x", "stream": true}'))
        assert service.began.acquire(timeout=20)
        service.events = (Begun(None, 0, ""), Part({"a": 1}), Ended(Usage()))
        assert ask(made)[1] == {"a": 1}


def test_the_end_of_the_front_ends_what_computes() -> None:
    service = Scripted()
    service.go.clear()
    with fronted(service) as made:
        asked = threading.Thread(target=ask, args=(made,))
        asked.start()
        assert service.began.acquire(timeout=20)
    assert service.cancelled.acquire(timeout=20)
    asked.join()


# -- counts ----------------------------------------------------------------------------------------


def test_every_request_leaves_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with fronted(Scripted()) as made:
        ask(made)
        ask(made, "/v1/models?key=secret", method="GET")
        ask(made, "/no\x7f"[:3], method="GET")
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines[0].startswith("POST /v1/completions prompt 7 cached 3 generated 2 ")
    assert lines[0].endswith(" ms 200")
    assert lines[1].startswith("GET /v1/models ")
    assert lines[2].endswith(" ms 404")
    assert len(lines) == 3


def test_metrics_count_tokens_and_answers() -> None:
    with fronted(Scripted()) as made:
        ask(made)
        ask(made)
        ask(made, body=b"{")
        connection = http.client.HTTPConnection(*address(made), timeout=20)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.getheader("Content-Type", "").startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
        connection.close()
    values = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")
    )
    assert values['taliesin_requests_total{path="/v1/completions",status="200"}'] == "2"
    assert values['taliesin_requests_total{path="/v1/completions",status="400"}'] == "1"
    assert values["taliesin_prompt_tokens_total"] == "14"
    assert values["taliesin_cached_tokens_total"] == "6"
    assert values["taliesin_generated_tokens_total"] == "4"
    assert values["taliesin_request_seconds_count"] == "3"
    assert values["taliesin_things_total"] == "3"
    assert values['taliesin_request_seconds_bucket{le="+Inf"}'] == "3"
