"""What the tests of the front share: a front in a thread, a service that answers what it is told,
and requests by hand.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

from taliesin.serve.listen import FrontServer
from taliesin.serve.plan import Begun, Cancellation, Count, Ended, Event, Job, Part, Usage
from taliesin.serve.requests import Request


@contextlib.contextmanager
def fronted(service: Any, *arguments: Any, **settings: Any) -> Iterator[FrontServer]:
    made = FrontServer(service, *arguments, **settings)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


class Scripted:
    """A service that answers `events` as soon as `go` is set, and keeps what it was asked."""

    model_id, turns = "tiny", 1

    def __init__(self, *events: Event) -> None:
        self.events = events or (
            Begun(None, 0, "not grafted"),
            Part({"choices": []}),
            Ended(Usage(7, 3, 2)),
        )
        self.go = threading.Event()
        self.go.set()
        self.began = threading.Semaphore(0)
        self.cancelled = threading.Semaphore(0)
        self.asked: list[Request] = []
        self.computed: list[Request] = []

    def counts(self) -> list[Count]:
        return [Count("things_total", "Things.", 3)]

    def prepare(self, request: Request) -> Job:
        self.asked.append(request)

        def job(cancellation: Cancellation) -> Iterator[Event]:
            self.computed.append(request)
            self.began.release()
            cancellation.on_cancel(self.cancelled.release)
            cancellation.on_cancel(self.go.set)
            assert self.go.wait(20)
            cancellation.require_wanted()
            yield from self.events

        return job


def address(made: FrontServer) -> tuple[str, int]:
    return made.server_address


def ask(
    made: FrontServer,
    path: str = "/v1/completions",
    body: bytes | str = b'{"prompt": "x"}',
    method: str = "POST",
    **headers: str,
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, JSON body and headers of one answer."""
    connection = http.client.HTTPConnection(*address(made), timeout=20)
    try:
        sent = {
            "Content-Type": "application/json",
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text or b"{}"), dict(answer.getheaders())
    finally:
        connection.close()


def post(body: bytes = b'{"prompt": "x"}', version: str = "1.1", more: str = "") -> bytes:
    """A completion request as it goes over the wire, with `more` header lines."""
    return (
        f"POST /v1/completions HTTP/{version}\r\nHost: localhost\r\n{more}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def raw(made: FrontServer, sent: bytes, timeout: float = 20) -> bytes:
    """Everything that comes back for `sent`, to the end of the connection."""
    with socket.create_connection(address(made), timeout=timeout) as connection:
        connection.sendall(sent)
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65536):
                got += part
        return got
