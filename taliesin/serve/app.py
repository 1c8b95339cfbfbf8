"""`taliesin serve` over HTTP: who may ask, bodies, turns, streams, errors, counts and the log line.

    POST /v1/chat/completions, /v1/completions
    GET  /v1/models, /v1/models/NAME, /health, /metrics

Response headers of an answer say what was done:

    X-Taliesin-Block            id of the block, or "none"
    X-Taliesin-Tokens-Skipped   prompt tokens that were not evaluated
    X-Taliesin-Proof            what the answer may be called

Promises: requests are answered in the order in which they came, as many at once as the engine has
turns; a client that leaves ends its computation; a stream that has nothing to say yet says so in a
comment line, and one that fails after it began ends with an error and without [DONE]. What waits
and what is held in memory is bounded. Without a key only loopback Host headers are served, so that
a web page cannot reach it by another name; no CORS header is sent, and a body must be JSON, which a
foreign page may not send without asking first.
Deliberately does not know: what answers (`plan.Service`), and sockets (`listen`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import sys
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from taliesin.errors import ToolkitError
from taliesin.host import console
from taliesin.serve import requests
from taliesin.serve.connection import error_body
from taliesin.serve.metrics import TYPE, Metrics
from taliesin.serve.plan import Begun, Cancellation, Ended, Event, Job, Left, Part, Service, Usage

MAX_BODY_BYTES = 16 << 20
MOST_REQUESTS = 128
"""Requests that compute or wait for their turn; one more is a 503."""

MOST_BODIES = 8
"""How many bodies of the largest size may be held at once, whatever their number."""

COMMENT_SECONDS = 5.0
"""A stream that has nothing to say for so long sends a comment line."""

_MOST_DIGITS = 18  # of a length
_DROP_SECONDS = 1.0  # for the rest of a body that is refused
_LEFT = 499  # as nginx calls it: the client closed its request
_STATUS = {
    2: HTTPStatus.BAD_REQUEST,
    10: HTTPStatus.NOT_FOUND,
    22: HTTPStatus.CONFLICT,
    33: HTTPStatus.BAD_REQUEST,
}
_Outcome = Event | BaseException | None  # None: the job has ended


class Refusal(Exception):
    """A request is answered with an error before an engine sees it."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def described(error: Exception) -> tuple[int, dict[str, Any]]:
    """HTTP's status for what went wrong, and the body that says it; a bug is shown on stderr."""
    if isinstance(error, ToolkitError):
        status = _STATUS.get(error.exit_code, HTTPStatus.BAD_GATEWAY)
        return status, error_body(status, str(error), error.kind)
    if isinstance(error, Refusal):
        return error.status, error_body(error.status, str(error))
    if isinstance(error, Left):  # nobody reads it, unless it is the server that leaves
        return _LEFT, error_body(_LEFT, "the answer was given up", "left")
    traceback.print_exception(error, file=sys.stderr)
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    return status, error_body(status, "a bug: the server's stderr shows it", "bug")


def taliesin_headers(begun: Begun) -> dict[str, str]:
    return {
        "X-Taliesin-Block": begun.block or "none",
        "X-Taliesin-Tokens-Skipped": str(begun.skipped),
        "X-Taliesin-Proof": begun.proof.encode("ascii", "replace").decode(),
    }


def host_name(header: str) -> str:
    """The name in a Host header, without port and brackets."""
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"


@dataclass
class Log:
    """The line that a request leaves on stderr."""

    method: str
    path: str
    began: float = field(default_factory=time.monotonic)
    status: int = 0
    usage: Usage | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def write(self) -> None:
        counts = ""
        if self.usage is not None:
            prompt, cached, generated = self.usage
            counts = f" prompt {prompt} cached {cached} generated {generated}"
        console.note(
            f"{time.strftime('%H:%M:%S')} {self.method} {self.path[:200]}{counts} "
            f"{self.seconds * 1e3:.0f} ms {self.status}"
        )


class App:
    """The ASGI application of one service."""

    def __init__(
        self, service: Service, key: str | None = None, max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self.service, self.key, self.max_body_bytes = service, key, max_body_bytes
        self.metrics = Metrics()
        self.comment_seconds = COMMENT_SECONDS
        self._open: set[Cancellation] = set()
        self._held_bytes = 0
        self._turns = asyncio.Semaphore(service.turns)
        self._working: set[asyncio.Task[None]] = set()  # the loop itself forgets its tasks
        self._readers = ThreadPoolExecutor(1, "read")  # one body at a time becomes objects
        self._workers = ThreadPoolExecutor(service.turns, "answer")
        self._routes = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
                *(Route(path, _Endpoint(self), methods=["POST"]) for path in _PATHS),
            ],
            exception_handlers={HTTPException: _http_error},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        log = scope["log"] = Log(scope["method"], scope["raw_path"].decode("ascii", "replace"))

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                log.status = message["status"]
            await send(message)

        try:
            self._require_allowed(scope)
            await self._routes(scope, receive, sending)
        except Refusal as refusal:
            await _refuse(refusal, scope, receive, sending)
        finally:
            self.metrics.left += log.status == _LEFT
            if scope["path"] in _PATHS:
                self.metrics.answered(scope["path"], log.status, log.seconds, log.usage or Usage())
            log.write()

    def stop(self) -> None:
        """End every computation; to be called from the loop's thread."""
        for cancellation in list(self._open):
            cancellation.cancel()

    def close(self) -> None:
        """Wait until nothing computes any more."""
        self._readers.shutdown()
        self._workers.shutdown()

    # -- who may ask -------------------------------------------------------------------------------

    def _require_allowed(self, scope: Scope) -> None:
        if scope["path"] == "/health":
            return
        headers = Headers(scope=scope)
        if self.key is not None:
            given = headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, f"Bearer {self.key}".encode()):
                raise Refusal(HTTPStatus.UNAUTHORIZED, "a wrong key, or none")
            return
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_loopback(host_name(hosts[0])):
            raise Refusal(HTTPStatus.FORBIDDEN, "asked by a name that is not a loopback one")

    # -- what is not a completion ------------------------------------------------------------------

    async def _health(self, _request: HttpRequest) -> Response:
        return JSONResponse({"status": "ok"})

    async def _metrics(self, _request: HttpRequest) -> Response:
        return PlainTextResponse(
            self.metrics.text(self.service.counts()), headers={"Content-Type": TYPE}
        )

    async def _models(self, _request: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._known()]})

    async def _model(self, request: HttpRequest) -> Response:
        if request.path_params["name"] != self.service.model_id:
            return _Json(error_body(HTTPStatus.NOT_FOUND, "no such model"), HTTPStatus.NOT_FOUND)
        return JSONResponse(self._known())

    def _known(self) -> dict[str, Any]:
        return {
            "id": self.service.model_id,
            "object": "model",
            "created": 0,
            "owned_by": "taliesin",
        }

    # -- completions -------------------------------------------------------------------------------

    async def complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request for a completion."""
        cancellation = Cancellation()
        held = 0
        try:
            if len(self._open) >= MOST_REQUESTS:
                raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests wait already")
            self._open.add(cancellation)
            raw, held = await self._body(scope, receive)
            loop = asyncio.get_running_loop()
            request = await loop.run_in_executor(self._readers, requests.read, scope["path"], raw)
            del raw
            job = await loop.run_in_executor(self._readers, self.service.prepare, request)
            events = self._events(job, cancellation, receive)
            async with contextlib.aclosing(events):
                answer = _stream if request.fields.stream else _whole
                await answer(events, scope, receive, send)
        except Refusal as refusal:  # Starlette would make a 500 of it
            await _refuse(refusal, scope, receive, send)
        except Exception as error:
            status, body = described(error)
            await _Json(body, status)(scope, receive, send)
        finally:
            self._open.discard(cancellation)
            self._held_bytes -= held

    async def _body(self, scope: Scope, receive: Receive) -> tuple[bytes, int]:
        """The body, and what it counts for in `_held_bytes`.

        Raises:
            Refusal: not JSON, of unknown length, too large. Left: the client is gone.
        """
        headers = Headers(scope=scope)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
        lengths = headers.getlist("content-length")
        length = lengths[0] if len(lengths) == 1 else ""
        if not length.isascii() or not length.isdigit() or "transfer-encoding" in headers:
            raise Refusal(
                HTTPStatus.LENGTH_REQUIRED,
                "one Content-Length is needed, and no Transfer-Encoding",
            )
        if len(length) > _MOST_DIGITS or int(length) > self.max_body_bytes:
            raise Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body is larger than {self.max_body_bytes} bytes",
            )
        body = bytearray()
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Left
                chunk = message.get("body", b"")
                body += chunk
                self._held_bytes += len(chunk)
                if self._held_bytes > MOST_BODIES * self.max_body_bytes:
                    raise Refusal(
                        HTTPStatus.SERVICE_UNAVAILABLE, "the requests that wait are too large"
                    )
                if not message.get("more_body"):
                    return bytes(body), len(body)
        except BaseException:
            self._held_bytes -= len(body)
            raise

    async def _events(
        self, job: Job, cancellation: Cancellation, receive: Receive
    ) -> AsyncGenerator[Event | None]:
        """A job's events as they come; None whenever none came for `comment_seconds`.

        The job's turn ends with the job, however slowly its answer is read.

        Raises:
            Left: the client is gone. Others: as the job.
        """
        outcomes: asyncio.Queue[_Outcome] = asyncio.Queue()
        watcher = asyncio.create_task(_gone(receive, cancellation))
        # It ends by itself, and only then gives its turn back.
        worker = asyncio.create_task(self._work(job, cancellation, watcher, outcomes))
        self._working.add(worker)
        worker.add_done_callback(self._working.discard)
        try:
            while True:
                try:
                    outcome = await asyncio.wait_for(outcomes.get(), self.comment_seconds)
                except TimeoutError:
                    yield None
                    continue
                if outcome is None:
                    return
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        finally:
            cancellation.cancel()
            watcher.cancel()

    async def _work(
        self,
        job: Job,
        cancellation: Cancellation,
        watcher: asyncio.Task[None],
        outcomes: asyncio.Queue[_Outcome],
    ) -> None:
        """Wait for a turn, run the job in a thread, put what comes into `outcomes`."""
        turn = asyncio.create_task(self._turns.acquire())
        self.metrics.waiting += 1
        await asyncio.wait({turn, watcher}, return_when=asyncio.FIRST_COMPLETED)
        self.metrics.waiting -= 1
        if not turn.done():
            turn.cancel()
            outcomes.put_nowait(Left())
            return
        loop = asyncio.get_running_loop()

        def run() -> None:
            try:
                cancellation.require_wanted()
                for event in job(cancellation):
                    loop.call_soon_threadsafe(outcomes.put_nowait, event)
                end: BaseException | None = None
            except BaseException as error:  # told to whoever waits for the answer
                end = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(outcomes.put_nowait, end)

        self.metrics.computing += 1
        try:
            await asyncio.shield(loop.run_in_executor(self._workers, run))
        finally:
            self.metrics.computing -= 1
            self._turns.release()


_PATHS = (requests.CHAT, requests.TEXT)


@dataclass(frozen=True)
class _Endpoint:
    """`App.complete` as Starlette takes an endpoint that sends by itself."""

    app: App

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app.complete(scope, receive, send)


async def _gone(receive: Receive, cancellation: Cancellation) -> None:
    """Wait until the client is gone, and cancel its request."""
    while (await receive())["type"] != "http.disconnect":
        pass
    cancellation.cancel()


async def _whole(
    events: AsyncIterator[Event | None],
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """An answer in one piece, its headers in front."""
    headers: dict[str, str] = {}
    answer: dict[str, Any] = {}
    async for event in events:
        match event:
            case Begun():
                headers = taliesin_headers(event)
            case Part(data):
                answer = data
            case Ended(usage):
                scope["log"].usage = usage
    await _Json(answer, headers=headers)(scope, receive, send)


async def _stream(
    events: AsyncIterator[Event | None],
    scope: Scope,
    _receive: Receive,
    send: Send,
) -> None:
    """An answer as server-sent events. The status is that of the first event, unless that takes
    long.
    """
    started = False

    async def start(headers: dict[str, str]) -> None:
        nonlocal started
        started = True
        sent = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", **headers}
        encoded = [(k.lower().encode(), v.encode()) for k, v in sent.items()]
        await send({"type": "http.response.start", "status": 200, "headers": encoded})

    async def write(text: str, more: bool = True) -> None:
        await send({"type": "http.response.body", "body": text.encode(), "more_body": more})

    try:
        async for event in events:
            match event:
                case Begun():
                    headers = taliesin_headers(event)
                    if started:
                        await write("".join(f": {k}: {v}\n" for k, v in headers.items()) + "\n")
                    else:
                        await start(headers)
                case Part(data):
                    await write(f"data: {console.json_line(data)}\n\n")
                case Ended(usage):
                    scope["log"].usage = usage
                case None:
                    if not started:
                        await start({})
                    await write(": waiting\n\n")
    except Exception as error:
        if not started:
            raise
        scope["log"].status, body = described(error)  # a stream cannot take its status back
        await write(f"data: {console.json_line(body)}\n\n", more=False)
        return
    await write("data: [DONE]\n\n", more=False)


class _Json(JSONResponse):
    """Strict JSON: what is not finite becomes null."""

    def render(self, content: Any) -> bytes:
        return console.json_line(content).encode()


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer before the body was read: what comes of it is dropped, and the connection closed."""
    if "expect" not in Headers(scope=scope):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DROP_SECONDS):
                # A connection that is closed with bytes unread takes its answer with it.
                while (await receive()).get("more_body"):
                    pass
    headers = {"Connection": "close"}
    if refusal.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "1"
    status, body = described(refusal)
    await _Json(body, status, headers)(scope, receive, send)


async def _http_error(request: HttpRequest, error: Exception) -> Response:
    """The errors of Starlette itself, in the form of ours."""
    assert isinstance(error, HTTPException)
    message = "no such path" if error.status_code == HTTPStatus.NOT_FOUND else error.detail
    headers = {**(error.headers or {}), "Connection": "close"}  # the body was not read
    return _Json(error_body(error.status_code, message), error.status_code, headers)
