"""The listening socket of a front: uvicorn in a thread of the caller's.

Promises: without a key only loopback addresses are bound; `shutdown` ends every computation and
waits for it, so that the engine may be closed afterwards.
Deliberately does not know: requests.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading

import uvicorn

from taliesin import __version__
from taliesin.errors import UsageError
from taliesin.serve.app import MAX_BODY_BYTES, App, is_loopback
from taliesin.serve.connection import IDLE_SECONDS, MOST_HEAD_BYTES, Connection
from taliesin.serve.plan import Service

_LEAST_KEY = 8
_STOP_SECONDS = 1


class FrontServer:
    """A front that listens.

    Raises:
        UsageError: `host` is not a loopback address and there is no key, or the address cannot be
        bound.
    """

    def __init__(
        self,
        service: Service,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        key: str | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        if key is None and not is_loopback(host):
            raise UsageError(
                "not bound beyond this machine without a key",
                got=host,
                hint="--api-key, or TALIESIN_API_KEY",
            )
        if key is not None and not (key.isascii() and key.isprintable() and len(key) >= _LEAST_KEY):
            raise UsageError(
                "the key is not usable", expected="at least 8 printable ASCII characters"
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=512)
        except (OSError, UnicodeError) as error:
            raise UsageError(
                "the address cannot be bound",
                got=getattr(error, "strerror", None) or error,
                where=f"{host}:{port}",
            ) from error
        self.app = App(service, key, max_body_bytes)
        self.connection = Connection.for_server()
        # A request that is no HTTP, an upgrade: the client's doing, and answered. Bugs are errors.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                self.app,
                loop="asyncio",
                http=self.connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                headers=[("Server", f"taliesin/{__version__}")],
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=_STOP_SECONDS,
                h11_max_incomplete_event_size=MOST_HEAD_BYTES,
            )
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = threading.Event()

    @property
    def server_address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        host, port = self.server_address
        return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"

    def serve_forever(self) -> None:
        """Answer until `shutdown`."""

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._uvicorn.serve(sockets=[self._socket])

        try:
            asyncio.run(serve())
        finally:
            self._ended.set()

    def shutdown(self) -> None:
        """End `serve_forever`, which runs in another thread, and wait until nothing computes."""
        self._uvicorn.should_exit = True
        if self._loop is not None and not self._ended.is_set():
            self._loop.call_soon_threadsafe(self.app.stop)
        self._ended.wait()
        self.app.close()

    def server_close(self) -> None:
        self._socket.close()
