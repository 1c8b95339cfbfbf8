"""What the front asks of an engine, and what an engine tells it: `Service`, jobs and their events.

Promises: an engine behind the front is one object with `prepare` and the jobs that it makes; the
front knows nothing else of it. An error of `prepare` is one of the request, found before anything
is computed. A job's first event is `Begun`, the last one `Ended`; between them come the JSON
objects of the answer: one, or the chunks of a stream.
Deliberately does not know: HTTP, llama-server, llama.cpp.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from taliesin.serve.requests import Request


class Usage(NamedTuple):
    """Tokens of one answer: of the prompt, of those how many were not evaluated again, generated
    ones.
    """

    prompt: int = 0
    cached: int = 0
    generated: int = 0


class Begun(NamedTuple):
    """The answer is coming. block: id of the block that was used; skipped: prompt tokens that were
    not evaluated; proof: what the answer may be called.
    """

    block: str | None
    skipped: int
    proof: str


class Part(NamedTuple):
    """One JSON object of the answer."""

    data: dict[str, object]


class Ended(NamedTuple):
    """The answer is whole."""

    usage: Usage


Event = Begun | Part | Ended


class Left(Exception):
    """The client went away, and the job stopped because of it."""


class Cancellation:
    """Whether an answer is still wanted; set by the front, asked by a job. Thread-safe."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._calls: list[Callable[[], object]] = []

    @property
    def cancelled(self) -> bool:
        return self._event.is_set()

    def cancel(self) -> None:
        """Nobody wants the answer any more: what was given to `on_cancel` is called, once."""
        with self._lock:
            self._event.set()
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    def on_cancel(self, call: Callable[[], object]) -> None:
        """Call `call` on cancellation, from whatever thread that comes; now, if it came already."""
        with self._lock:
            if not self._event.is_set():
                self._calls.append(call)
                return
        call()

    def require_wanted(self) -> None:
        """Raises: Left."""
        if self.cancelled:
            raise Left


Job = Callable[[Cancellation], Iterator[Event]]


class Count(NamedTuple):
    """A figure of an engine's own for /metrics: a counter, or a gauge that goes up and down."""

    name: str
    help: str
    value: float
    gauge: bool = False


class Service(Protocol):
    """An engine behind the front.

    model_id: what /v1/models says; turns: how many jobs may run at once.
    """

    model_id: str
    turns: int

    def prepare(self, request: Request) -> Job:
        """Check a request and make its job; computes nothing. Called from any thread.

        Raises:
            UsageError: a field that this engine cannot honour, named. Other ToolkitErrors: as the
            engine finds them.
        """
        ...

    def counts(self) -> Sequence[Count]:
        """Figures of its own. Called from the front's thread, also while a job runs."""
        ...
