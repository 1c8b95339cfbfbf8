"""Hostile clients get a status or a closed connection, and the next honest one its answer."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import psutil
import pytest

from taliesin.serve.listen import FrontServer
from taliesin.serve.plan import Begun, Ended, Part, Usage
from tests.taliesin.serve.fronts import Scripted, address, ask, fronted, post, raw

MODELS = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def front() -> Iterator[FrontServer]:
    """A front with short deadlines and room for eight connections that wait."""
    with fronted(Scripted(), max_body_bytes=1 << 20) as made:
        made.connection.head_seconds = made.connection.body_seconds = 0.5
        made.connection.write_seconds = 0.5
        made.connection.most_waiting = 8
        yield made
        assert ask(made)[0] == 200  # the next honest client
        until = time.monotonic() + 20
        while made.connection.waiting and time.monotonic() < until:
            time.sleep(0.02)


def opened(made: FrontServer, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(address(made), timeout=20)
    connection.sendall(sent)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Wait for the other side to close; whatever it sent before is dropped."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(65536):
            pass
    connection.close()
    return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET",
        b"GET /v1/models HTTP/1.1\r\nHost: loc",
        post()[:-3],
        MODELS + b"\r\n" + b"GET /v1/mod",
    ],
)
def test_a_client_that_does_not_finish_its_request_loses_its_connection(
    front: FrontServer, sent: bytes
) -> None:
    assert is_closed(opened(front, sent))


def test_a_drip_does_not_stretch_the_deadline(front: FrontServer) -> None:
    connection = opened(front, b"GET /v1/models HTTP/1.1\r\n")
    until = time.monotonic() + 20
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < until:
            connection.sendall(b"X-A: b\r\n")
            time.sleep(0.05)
    connection.close()
    assert time.monotonic() < until


def test_a_client_that_does_not_take_its_answer_loses_its_connection(front: FrontServer) -> None:
    service = front.app.service
    assert isinstance(service, Scripted)
    kept = service.events
    many = [Part({"text": "x" * 60_000}) for _ in range(300)]
    service.events = (Begun(None, 0, ""), *many, Ended(Usage()))
    connection = opened(front, post(b'{"prompt": "x", "stream": true}'))
    time.sleep(1.5)
    service.events = kept
    with contextlib.suppress(ConnectionError):
        got = 0
        while part := connection.recv(1 << 20):
            got += len(part)
        assert got < 300 * 60_000
    connection.close()


def test_of_too_many_that_wait_the_oldest_goes(front: FrontServer) -> None:
    front.connection.head_seconds = 60
    held = [opened(front, b"GET / HTTP/1.1\r\n") for _ in range(9)]
    assert is_closed(held[0])
    assert ask(front, "/v1/models", method="GET")[0] == 200
    for connection in held[1:]:
        connection.close()


def test_five_hundred_connections_leave_room_for_an_honest_one() -> None:
    with fronted(Scripted()) as made:
        with contextlib.ExitStack() as stack:
            for _ in range(250):
                for sent in (b"", b"POST /v1/completions HTTP/1.1\r\n"):
                    connection = socket.create_connection(address(made), timeout=20)
                    stack.callback(connection.close)
                    with contextlib.suppress(ConnectionError):
                        connection.sendall(sent)
            assert ask(made)[0] == 200
            assert len(made.connection.waiting) <= made.connection.most_waiting
        until = time.monotonic() + 20
        while made.connection.waiting and time.monotonic() < until:
            time.sleep(0.02)
        assert not made.connection.waiting
        port = made.server_address[1]
        ours = [c for c in psutil.Process().net_connections() if c.laddr and c.laddr[1] == port]
        assert [c.status for c in ours] == ["LISTEN"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
        (b"\xff\xfe\xfd\r\n\r\n", 400),
        (b"GET /v1/models\r\n\r\n", 400),
        (b"GET /v1/models HTTP/9.9\r\n\r\n", 403),
        (b"GET /v1/mod\xc3\xa9ls HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.0\r\n\r\n", 403),
        (b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        (MODELS + b"A" * 200_000 + b": b\r\n\r\n", 400),
        (MODELS + b"X: y\r\n" * 30_000 + b"\r\n", 400),
        (MODELS + b"X: a\x00b\r\n\r\n", 400),
        (MODELS + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n", 400),
        (MODELS + b"Content-Length: 0x10\r\n\r\n", 400),
        (MODELS + b"Connection: close\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400),
        (post().replace(b"Content-Length: 15", b"Transfer-Encoding: chunked"), 411),
        (post().replace(b"Content-Length: 15", b"Transfer-Encoding: gzip"), 400),
        (
            post().replace(b"15\r\n", b"15\r\nTransfer-Encoding: chunked\r\n"),
            400,
        ),
        (post(b'{"prompt": "\xff"}', more="Connection: close\r\n"), 400),
        (post(b'{"prompt": "\xed\xa0\x80"}', more="Connection: close\r\n"), 400),
        (MODELS + b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n", 200),
        (MODELS + b"Connection: close\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n", 200),
    ],
)
def test_what_is_no_honest_request_gets_a_status(
    front: FrontServer, sent: bytes, status: int
) -> None:
    answer = raw(front, sent)
    if answer or status == 200:  # or it was closed before all was sent
        assert answer.split(b" ", 2)[1] == str(status).encode()
        if status != 200:
            head, _, body = answer.partition(b"\r\n\r\n")
            assert json.loads(body)["error"]["code"] == status, head


def test_a_body_that_is_not_read_is_not_taken_for_the_next_request(front: FrontServer) -> None:
    inner = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    sent = MODELS + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(inner) + inner
    assert raw(front, sent).count(b"HTTP/1.1 200") == 1


def test_requests_in_a_row_on_one_connection_are_answered_in_order(front: FrontServer) -> None:
    last = MODELS + b"Connection: close\r\n\r\n"
    answer = raw(front, post() + MODELS + b"\r\n" + post(b"{") + last)
    statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200", b"200", b"400", b"200"]


def test_a_flood_of_requests_in_a_row_is_answered_or_cut(front: FrontServer) -> None:
    connection = opened(front)
    with contextlib.suppress(ConnectionError):
        connection.sendall((MODELS + b"\r\n") * 2000 + MODELS + b"Connection: close\r\n\r\n")
    assert is_closed(connection)


def test_a_large_body_that_is_refused_still_gets_its_answer(front: FrontServer) -> None:
    answer = raw(front, post(b"x" * (8 << 20)))
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_client_that_asks_before_it_sends_is_told_at_once(front: FrontServer) -> None:
    head = post(b"x" * (2 << 20)).partition(b"\r\n\r\n")[0] + b"\r\nExpect: 100-continue\r\n\r\n"
    assert raw(front, head).startswith(b"HTTP/1.1 413")
    body = b'{"prompt": "x"}'
    small = post(body).partition(b"\r\n\r\n")[0] + b"\r\nExpect: 100-continue\r\n\r\n"
    with opened(front, small) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_a_client_that_resets_its_connection_leaves_no_trace(
    front: FrontServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for sent in (b"POST /v1/comp", post()[:-3], post()):
        connection = opened(front, sent)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        connection.close()
    time.sleep(0.2)
    assert "Traceback" not in capsys.readouterr().err
