"""`taliesin serve`: an OpenAI-compatible front of a llama-server that grafts blocks of a library.

A request's prompt is tokenised by the server itself; the longest block that is a prefix of its ids,
or the one named in `taliesin_block`, is put into a slot, and the request goes to the server pinned
to that slot. Everything else passes through, pinned too and without reuse, so that its answer is a
fresh one. Response headers say what was done:

    X-Taliesin-Block            id of the block, or "none"
    X-Taliesin-Tokens-Skipped   prompt tokens that were not evaluated
    X-Taliesin-Proof            what the answer may be called

The headers are sent only after the server's own counts were read from its first chunk: an
ineffective graft is a 502, never an answer.

One request computes at a time (`slots`). Standard library only: http.server with a thread for each
connection. Without a key it binds loopback addresses only and accepts loopback Host headers only,
so that a web page cannot reach it by another name; it sends no CORS header, and a body must be
JSON, which a foreign page may not send without asking first.
"""

from __future__ import annotations

import hmac
import ipaddress
import itertools
import json
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from taliesin import __version__
from taliesin.errors import (
    CertificateMismatch,
    FormatError,
    ServerError,
    StoreDamaged,
    StoreMissing,
    ToolkitError,
    UnsupportedVersion,
    UsageError,
)
from taliesin.host import console
from taliesin.server.backend import Grafted, ServerEngine
from taliesin.server.process import Refused
from taliesin.store.library import Library

MAX_BODY_BYTES = 16 << 20
_SECONDS = 60.0  # for a client to send its request
_MOST_DIGITS = 18  # of a length
_OWN = "taliesin_block"
_ROUTES = ("/v1/chat/completions", "/v1/completions")
# Fields of llama-server's that would undo the pinning, or put a chunk without counts in front of
# the first one.
_RESERVED = (
    "id_slot",
    "cache_prompt",
    "n_cache_reuse",
    "timings_per_token",
    "return_progress",
    _OWN,
)
_ANSWERS = ("n", "n_cmpl")  # how many answers: OpenAI's name and llama-server's own
# A block that is not what it was, as far as that is known without the server: the request is
# answered without it.
_UNUSABLE = (StoreMissing, StoreDamaged, FormatError, UnsupportedVersion, CertificateMismatch)
_STATUS = {
    2: HTTPStatus.BAD_REQUEST,
    10: HTTPStatus.NOT_FOUND,
    22: HTTPStatus.CONFLICT,
    33: HTTPStatus.BAD_REQUEST,
}


@dataclass(frozen=True)
class Plan:
    """What is sent on for one request: `path` and `body`, after a graft or not. `as_chat`: the
    answer is to be a chat one.
    """

    path: str
    body: dict[str, Any]
    grafted: Grafted | None
    n_query: int
    next_token: int | None
    as_chat: bool


@dataclass
class Front:
    """The requests' way from HTTP to a slot. Thread-safe: one request at a time is planned and
    computed.
    """

    engine: ServerEngine
    library: Path | None
    model_id: str
    _blocks: dict[str, npt.NDArray[np.int32]] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)
    _grafted: dict[str, Grafted] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def plan(self, path: str, body: dict[str, Any]) -> Plan:
        """How a request is answered.

        Raises:
            UsageError: it asks for what cannot be grafted. StoreMissing: it names a block that is
            not there.
        """
        for name in _ANSWERS:
            if body.get(name) not in (None, 1):
                raise UsageError(
                    "one answer at a time: several would be computed in one batch",
                    got=f"{name} = {body[name]!r}",
                )
        wanted = body.get(_OWN)
        sent = {k: v for k, v in body.items() if k not in _RESERVED}
        if wanted is not None:
            return self._named(path, sent, wanted)
        ids = self._prompt_ids(path, sent)
        unusable: set[str] = set()
        while ids and (key := self._longest_prefix(ids, unusable)) is not None:
            n = len(self._blocks[key])
            try:
                grafted = self._graft(key)
            except _UNUSABLE as error:
                console.warn(f"answered without block {key[:12]}: {error}")
                unusable.add(key)
                continue
            return Plan(path, sent, grafted, len(ids) - n, ids[n], False)
        return Plan(path, sent, None, 0, None, False)

    def _named(self, path: str, body: dict[str, Any], wanted: object) -> Plan:
        if not isinstance(wanted, str):
            raise UsageError(f"{_OWN} is not a name", got=type(wanted).__name__)
        as_chat = path == _ROUTES[0]
        question = body.pop("prompt", None)
        if as_chat:
            messages = body.pop("messages", None)
            shape_ok = (
                isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], dict)
            )
            question = (
                messages[0].get("content")
                if shape_ok and messages[0].get("role") == "user"
                else None
            )
        if not isinstance(question, str):
            raise UsageError(
                "a named block takes one question",
                expected="one user message, or a prompt, that is a string",
                hint="the block is the text; the question follows it",
            )
        with self._store() as store:
            key = store.info(wanted).id
        grafted = self._graft(key)
        query = grafted.query(question)
        if not query:
            raise UsageError("the prompt adds no token after the block", expected="at least one")
        body["prompt"] = [*grafted.header.tokens.tolist(), *query]
        if as_chat and "max_completion_tokens" in body:
            body["max_tokens"] = body.pop("max_completion_tokens")
        return Plan(_ROUTES[1], body, grafted, len(query), query[0], as_chat)

    def _prompt_ids(self, path: str, body: dict[str, Any]) -> list[int] | None:
        """The ids that llama-server will make of the request; None where that is not one prompt of
        text.
        """
        client = self.engine.server.client
        if path == _ROUTES[0]:
            prompt = client.call("POST", "/apply-template", body)["prompt"]
        else:
            prompt = body.get("prompt")
            if (
                isinstance(prompt, list)
                and prompt
                and all(type(i) is int and 0 <= i < 1 << 31 for i in prompt)
            ):
                return prompt
        if not isinstance(prompt, str):
            return None
        made = client.call(
            "POST", "/tokenize", {"content": prompt, "add_special": True, "parse_special": True}
        )
        tokens: list[int] = made["tokens"]
        return tokens

    def _longest_prefix(self, ids: list[int], unusable: set[str]) -> str | None:
        """Id of the longest usable block whose ids begin `ids` and end before them; none of
        `unusable`.
        """
        with self._store() as store:
            listed = {info.id for info in store.list() if info.problem is None} - unusable
            for key in listed - set(self._blocks) - self._refused:
                try:
                    block = store.open(key)
                except _UNUSABLE as error:
                    console.warn(f"block {key[:12]} cannot be used: {error}")
                    continue
                with block:
                    try:
                        self.engine.require_usable(block)
                    except ToolkitError:
                        self._refused.add(key)  # of another model or recipe: it stays so
                    else:
                        self._blocks[key] = block.header.tokens
        given = np.asarray(ids, np.int64)
        found = [
            key
            for key in listed & set(self._blocks)
            if len(self._blocks[key]) < len(given)
            and np.array_equal(self._blocks[key], given[: len(self._blocks[key])])
        ]
        return max(found, key=lambda key: len(self._blocks[key]), default=None)

    def _graft(self, key: str) -> Grafted:
        """The block, verified and laid out; the last few are kept ready."""
        if key not in self._grafted:
            with self._store() as store, store.open(key) as block:
                self._grafted[key] = self.engine.graft_block(block, library=store)
            self._blocks.setdefault(key, self._grafted[key].header.tokens)
            while len(self._grafted) > self.engine.slots.n_slots:
                del self._grafted[next(iter(self._grafted))]
        return self._grafted[key]

    @contextmanager
    def _store(self) -> Iterator[Library]:
        with Library(self.library, create=False) as store:
            yield store

    @contextmanager
    def answer(
        self, path: str, body: dict[str, Any], still_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[tuple[dict[str, str], Iterator[dict[str, Any]]]]:
        """Response headers and the answer's JSON objects: one, or the chunks of a stream.

        Raises:
            ConnectionAbortedError: `still_wanted`, asked when it is this request's turn, said no.
        """
        engine = self.engine
        with self._lock:
            if not still_wanted():
                raise ConnectionAbortedError
            plan = self.plan(path, body)
            grafted = plan.grafted
            with engine.slots.lease(grafted.block_id if grafted else None) as slot:
                if grafted:
                    n_block = len(grafted.header.tokens)
                    engine.bring_in(grafted, slot, plan.next_token)
                else:
                    n_block, slot.block = 0, None
                pinned = {
                    **plan.body,
                    "id_slot": slot.number,
                    "cache_prompt": grafted is not None,
                    "timings_per_token": True,
                }
                request = engine.server.client.http.build_request("POST", plan.path, json=pinned)
                try:
                    with _sent(engine, request) as chunks:
                        head: list[dict[str, Any]] = []
                        for chunk in chunks:
                            head.append(chunk)
                            if "timings" in chunk:  # a chat stream begins with one that has none
                                break
                        timings = head[-1].get("timings", {}) if head else {}
                        if grafted:
                            engine.require_effective(
                                n_block,
                                plan.n_query,
                                timings.get("cache_n", -1),
                                timings.get("prompt_n", -1),
                            )
                            # Unknown until the end; the next request puts the block back where this
                            # one leaves the ring.
                            slot.next_token, slot.end = plan.next_token, engine.n_ctx
                        proof = grafted.label if grafted else "not grafted"
                        headers = {
                            "X-Taliesin-Block": grafted.block_id if grafted else "none",
                            "X-Taliesin-Tokens-Skipped": str(n_block),
                            "X-Taliesin-Proof": proof.encode("ascii", "replace").decode(),
                        }
                        objects = itertools.chain(head, chunks)
                        if plan.as_chat:
                            yield headers, (_as_chat(c, bool(body.get("stream"))) for c in objects)
                        else:
                            yield headers, objects
                except httpx.HTTPError as error:
                    raise ServerError(
                        "llama-server went away while it answered",
                        got=error,
                        where=engine.server.url,
                    ) from error


@contextmanager
def _sent(engine: ServerEngine, request: httpx.Request) -> Iterator[Iterator[dict[str, Any]]]:
    """Send a request; the JSON objects of its answer, of which there is at least one."""
    response = engine.server.client.http.send(request, stream=True)
    try:
        if response.status_code != HTTPStatus.OK or "text/event-stream" not in response.headers.get(
            "content-type", ""
        ):
            response.read()
            yield iter([engine.server.client.checked(response)])
            return
        yield _events(response)
    finally:
        response.close()


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The data of a stream of server-sent events, up to [DONE]."""
    for line in response.iter_lines():
        name, _, data = line.partition(":")
        if name == "error":
            raise ServerError("llama-server failed while it answered", got=data.strip()[:300])
        if name != "data" or data.strip() == "[DONE]":
            continue
        try:
            yield json.loads(data)
        except ValueError as error:
            raise ServerError(
                "llama-server sent something that is not JSON", got=data.strip()[:300]
            ) from error


def _as_chat(chunk: dict[str, Any], streamed: bool) -> dict[str, Any]:
    """A text completion, or a chunk of one, as a chat completion."""
    key = "delta" if streamed else "message"
    choices = [
        {
            "index": choice["index"],
            key: {"role": "assistant", "content": choice["text"]},
            "logprobs": choice.get("logprobs"),
            "finish_reason": choice["finish_reason"],
        }
        for choice in chunk["choices"]
    ]
    return {
        **chunk,
        "object": "chat.completion.chunk" if streamed else "chat.completion",
        "choices": choices,
    }


class _Handler(BaseHTTPRequestHandler):
    """One connection. `server` carries the front and the key."""

    protocol_version = "HTTP/1.1"
    server_version = f"taliesin/{__version__}"
    sys_version = ""
    timeout = _SECONDS
    server: FrontServer

    def do_GET(self) -> None:
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            # its body is not read, and would be taken for the next request
            self.close_connection = True
        if self.path == "/health":
            self._json(HTTPStatus.OK, {"status": "ok"})
        elif self._allowed():
            if self.path == "/v1/models":
                known = {
                    "id": self.server.front.model_id,
                    "object": "model",
                    "created": 0,
                    "owned_by": "taliesin",
                }
                self._json(HTTPStatus.OK, {"object": "list", "data": [known]})
            else:
                self._refuse(HTTPStatus.NOT_FOUND, "no such path")

    def do_POST(self) -> None:
        if not self._allowed():
            return
        if self.path not in _ROUTES:
            self._refuse(HTTPStatus.NOT_FOUND, "no such path")
            return
        body = self._body()
        if body is None:
            return
        self._started = False
        try:
            with self.server.front.answer(self.path, body, self._connected) as (headers, objects):
                if body.get("stream"):
                    self._stream(headers, objects)
                else:
                    self._json(HTTPStatus.OK, next(objects), headers)
        except ToolkitError as error:
            if self._started:  # a stream cannot take its status back
                self.close_connection = True
                return
            status = _STATUS.get(error.exit_code, HTTPStatus.BAD_GATEWAY)
            if isinstance(error, Refused) and error.status == HTTPStatus.BAD_REQUEST:
                status = HTTPStatus.BAD_REQUEST  # the client's fault: a 502 would have it try again
            self._refuse(status, str(error), error.kind)
        except ConnectionError:
            # the client went away; the server stops when its request is closed
            self.close_connection = True

    def _allowed(self) -> bool:
        key = self.server.key
        if key is not None:
            given = self.headers.get("Authorization", "").encode()
            if hmac.compare_digest(given, f"Bearer {key}".encode()):
                return True
            self._refuse(HTTPStatus.UNAUTHORIZED, "a wrong key, or none")
            return False
        hosts = self.headers.get_all("Host", [])
        if len(hosts) == 1 and _is_loopback(_host_name(hosts[0])):
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "asked by a name that is not a loopback one")
        return False

    def _body(self) -> dict[str, Any] | None:
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
            return None
        lengths = self.headers.get_all("Content-Length", [])
        length = lengths[0] if len(lengths) == 1 else ""
        if not length.isascii() or not length.isdigit() or "Transfer-Encoding" in self.headers:
            self._refuse(
                HTTPStatus.LENGTH_REQUIRED, "one Content-Length is needed, and no Transfer-Encoding"
            )
            return None
        if len(length) > _MOST_DIGITS or int(length) > self.server.max_body_bytes:
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body is larger than {self.server.max_body_bytes} bytes",
            )
            return None
        try:
            body = json.loads(self.rfile.read(int(length)))
            # As it is sent on: Python reads NaN, 1e999 and half a surrogate pair, which cannot be
            # written.
            json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            self._refuse(HTTPStatus.BAD_REQUEST, "the body is not a JSON object")
            return None
        return body

    def _connected(self) -> bool:
        """Whether the client is still there, as far as its socket says."""
        readable = select.poll()
        readable.register(self.connection, select.POLLIN)
        return not readable.poll(0) or self.connection.recv(1, socket.MSG_PEEK) != b""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The errors of http.server itself, in the form of ours."""
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def _refuse(
        self, status: HTTPStatus, message: str, kind: str = "invalid_request_error"
    ) -> None:
        self.close_connection = True  # the body may not have been read
        self._json(status, {"error": {"message": message, "type": kind, "code": int(status)}})

    def _json(
        self, status: HTTPStatus, value: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        data = console.json_line(value).encode()
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, headers: dict[str, str], objects: Iterator[dict[str, Any]]) -> None:
        self._started = True
        self.send_response(HTTPStatus.OK)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self._chunked = self.request_version != "HTTP/1.0"
        if self._chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.close_connection = True  # the end of the answer is the connection's
        self.end_headers()
        for chunk in objects:
            self._chunk(f"data: {console.json_line(chunk)}\n\n".encode())
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n" if self._chunked else data)

    def log_message(self, format: str, *args: Any) -> None:
        console.note(f"{time.strftime('%H:%M:%S')} {self.address_string()} {format % args}")


class FrontServer(ThreadingHTTPServer):
    """The listening socket of a `Front`.

    Raises:
        UsageError: `host` is not a loopback address and there is no key, or the port is taken.
    """

    daemon_threads = True

    def __init__(
        self,
        front: Front,
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        if key is None and not _is_loopback(host):
            raise UsageError(
                "not bound beyond this machine without a key",
                got=host,
                hint="--api-key, or TALIESIN_API_KEY",
            )
        if key is not None and (not key.isascii() or not key.isprintable() or len(key) < 8):
            raise UsageError(
                "the key is not usable", expected="at least 8 printable ASCII characters"
            )
        self.front, self.key, self.max_body_bytes = front, key, max_body_bytes
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise UsageError(
                "the address cannot be bound", got=error.strerror, where=f"{host}:{port}"
            ) from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing of a client that went away; anything else is a bug, and shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/v1"


def _host_name(header: str) -> str:
    """The name in a Host header, without port and brackets."""
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
