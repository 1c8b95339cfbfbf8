"""One connection of the front: uvicorn's HTTP/1.1, with deadlines and a bound on how many wait.

Promises: a client that does not send its headers within `HEAD_SECONDS` and its body within
`BODY_SECONDS`, or does not take what was written to it within `WRITE_SECONDS`, loses its
connection; of more than `MOST_WAITING` connections without a whole request the oldest is closed, so
that the next client is answered whoever holds the others; what is no HTTP is answered with an error
in our form. Deliberately does not know: what a request asks for.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from taliesin.host import console

HEAD_SECONDS = 20.0
BODY_SECONDS = 60.0
WRITE_SECONDS = 60.0
IDLE_SECONDS = 60
MOST_WAITING = 256
MOST_HEAD_BYTES = 64 << 10


def error_body(status: int, message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "code": status}}


class Connection(H11Protocol):
    """`waiting` is the class's own for each server (`for_server`): connections without a whole
    request, oldest first.
    """

    waiting: dict[Connection, None]
    head_seconds = HEAD_SECONDS
    body_seconds = BODY_SECONDS
    write_seconds = WRITE_SECONDS
    most_waiting = MOST_WAITING

    @classmethod
    def for_server(cls) -> type[Connection]:
        """A class whose connections know each other."""
        return type("Connection", (cls,), {"waiting": {}})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arriving: asyncio.TimerHandle | None = None
        self._written: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waiting[self] = None
        self._arriving = self._later(self.head_seconds)
        if len(self.waiting) > self.most_waiting:
            oldest = next(iter(self.waiting))
            oldest._arrived()
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._arrived()
        self._unset_keepalive_if_required()
        if self._written is not None:
            self._written.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self in self.waiting and self._arriving is None:  # the next request's first bytes
            self._arriving = self._later(self.head_seconds)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self in self.waiting and self.cycle is not None and not self.cycle.response_complete:
            if not self.cycle.more_body:
                self._arrived()
            elif self.cycle is not before:
                if self._arriving is not None:
                    self._arriving.cancel()
                self._arriving = self._later(self.body_seconds)

    def on_response_complete(self) -> None:
        if self.transport.is_closing():
            self._written = self._later(self.write_seconds)
        else:
            self.waiting[self] = None
        super().on_response_complete()
        if self in self.waiting and self.conn.trailing_data[0]:  # a next request began already
            self._arriving = self._later(self.head_seconds)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._written = self._later(self.write_seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._written is not None:
            self._written.cancel()
            self._written = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._written = self._later(self.write_seconds)

    def send_400_response(self, msg: str) -> None:
        """`msg`, as JSON; nothing where an answer is under way already."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        body = console.json_line(error_body(400, msg)).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        try:
            sent = self.conn.send(
                h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            )
            self.transport.write((sent or b"") + body)
        except h11.LocalProtocolError:
            pass
        self._arrived()
        self.transport.close()
        self._written = self._later(self.write_seconds)

    def _arrived(self) -> None:
        """The request is whole, or the connection is gone: nothing is waited for."""
        self.waiting.pop(self, None)
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _later(self, seconds: float) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, self.transport.abort)
