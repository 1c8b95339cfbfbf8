"""Traces of real traffic: recorded conversations with their text, and requests of which only the
hashes of prefix pieces are known.

    for run in talks(path): ...        # messages, for `replay`
    for request in hashed(path): ...   # pieces, for `simulate`

A file is JSON Lines, plain or .xz. A line is told by its keys: `messages` makes a conversation;
`hash_ids` with `timestamp` one request whose pieces are the same in all lines; `requests` a session
of requests whose pieces are its own.

Promises: a line that is none of these is one error with its number. Requests of sessions come in
the order of their times, `at_once` sessions beside each other.
Deliberately does not know: engines, servers, caches.
"""

from __future__ import annotations

import heapq
import json
import lzma
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from taliesin.errors import FormatError, StoreMissing

MOST_LINE = 64 << 20
_PIECES = 512  # tokens of a piece where a line does not say (FAST25's chat traces)


class Talk(NamedTuple):
    """A recorded conversation. messages: role and text each."""

    messages: list[dict[str, str]]

    def requests(self) -> Iterator[list[dict[str, str]]]:
        """What a client sent: everything up to each of the assistant's turns."""
        for index, message in enumerate(self.messages):
            if message["role"] == "assistant" and index:
                yield self.messages[:index]


class Hashed(NamedTuple):
    """A request of which only sizes are known. pieces: names of its prompt's pieces of `n_tokens`
    each, first to last; equal names are equal beginnings. prompt: tokens of it.
    """

    pieces: Sequence[Hashable]
    n_tokens: int
    prompt: int


def talks(path: Path) -> Iterator[Talk]:
    """The conversations of a trace.

    Raises:
        StoreMissing: no such file. FormatError: a line that is none, named.
    """
    for number, line in _lines(path):
        messages = line.get("messages")
        if not isinstance(messages, list) or not messages:
            raise _not_one(path, number, "a list of messages", line)
        yield Talk([_message(message, path, number) for message in messages])


def hashed(path: Path, at_once: int = 8) -> Iterator[Hashed]:
    """The requests of a trace of hashes, in the order in which they came; of sessions `at_once`
    run beside each other, and the next one begins where one has ended.

    Raises: as `talks`.
    """
    sessions: list[list[tuple[float, Hashed]]] = []
    for number, line in _lines(path):
        try:
            if "requests" in line:
                sessions.append(_session(line))
            else:
                ids = line["hash_ids"]
                yield Hashed([int(i) for i in ids], _PIECES, int(line["input_length"]))
        except (KeyError, TypeError, ValueError) as error:
            raise _not_one(path, number, "a request with hash_ids", line) from error
    yield from _beside(sessions, at_once)


def _session(line: dict[str, Any]) -> list[tuple[float, Hashed]]:
    size, name = int(line["block_size"]), str(line["id"])
    local = line["hash_id_scope"] == "local"
    return [
        (
            float(request["t"]),
            Hashed(
                [(name, int(i)) if local else int(i) for i in request["hash_ids"]],
                size,
                int(request["in"]),
            ),
        )
        for request in line["requests"]
    ]


def _beside(sessions: list[list[tuple[float, Hashed]]], at_once: int) -> Iterator[Hashed]:
    waiting = [sorted(session, key=lambda timed: timed[0]) for session in sessions if session]
    waiting.reverse()
    running: list[tuple[float, int, int, float]] = []  # time, session, request, its start
    started: list[list[tuple[float, Hashed]]] = []

    def start(now: float) -> None:
        if waiting:
            started.append(waiting.pop())
            heapq.heappush(running, (now + started[-1][0][0], len(started) - 1, 0, now))

    for _ in range(at_once):
        start(0.0)
    while running:
        time, session, index, began = heapq.heappop(running)
        yield started[session][index][1]
        if index + 1 < len(started[session]):
            next_time = began + started[session][index + 1][0]
            heapq.heappush(running, (next_time, session, index + 1, began))
        else:
            start(time)


def _message(message: Any, path: Path, number: int) -> dict[str, str]:
    """A message as any chat template takes it: tool calls as text, a tool's result as the user's
    turn.
    """
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise _not_one(path, number, "messages with a role", message)
    text = message.get("content")
    for call in message.get("tool_calls") or []:
        function = call["function"]
        text = (text or "") + f"{function['name']}({function['arguments']})"
    role = "user" if message["role"] == "tool" else message["role"]
    return {"role": role, "content": text or ""}


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    open_: Callable[..., IO[str]] = lzma.open if path.suffix == ".xz" else open
    try:
        opened = open_(path, "rt", encoding="utf-8")
    except OSError as error:
        raise StoreMissing("the trace cannot be read", got=error.strerror, where=path) from error
    with opened as lines:
        number = 0
        try:
            while raw := lines.readline(MOST_LINE):
                number += 1
                line = json.loads(raw)
                if not isinstance(line, dict):
                    raise _not_one(path, number, "a JSON object", line)
                yield number, line
        except (ValueError, lzma.LZMAError, EOFError, OSError) as error:
            raise FormatError(
                "the trace is not JSON Lines", got=error, where=f"{path}, line {number}"
            ) from error


def _not_one(path: Path, number: int, expected: str, got: Any) -> FormatError:
    return FormatError(
        "a line of the trace is of no known kind",
        expected=expected,
        got=f"keys {sorted(got)}"[:200] if isinstance(got, dict) else type(got).__name__,
        where=f"{path}, line {number}",
    )
