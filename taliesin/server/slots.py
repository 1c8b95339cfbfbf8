"""Which slot of a llama-server holds which block, and whose turn it is to compute.

Promises: one block a slot, every request pinned to the slot it was given, and one request at a
time. The last is not a courtesy: a server that decodes two slots at once puts their tokens into one
batch, other kernels run for two columns than for one, and answers change in their last bits
(measured, docs/server.md). The lock is a file beside the server's slot files, so it holds across
processes, and the book of the slots is kept under it.

What it does not know: what a block is, and how one gets into a slot.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from taliesin.errors import FormatError, StoreFull, StoreLocked
from taliesin.host import records
from taliesin.state import placement

_BOOK = ".taliesin-slots.json"
_LOCK = ".taliesin-slots.lock"


@dataclass
class Slot:
    """What one slot holds, as far as we know: ids of `block` at positions 0 to `n_tokens` - 1, then
    what a request left.

    end: one past the highest position that was written since the block came in; next_token: the id
    at position `n_tokens`, None when nothing followed yet.
    """

    number: int
    block: str | None = None
    n_tokens: int = 0
    end: int = 0
    next_token: int | None = None
    used: float = 0.0

    def holds(self, block: str, window: int, ring: int) -> bool:
        """Whether a request for `block` can use the slot as it is, and be computed as after a fresh
        prefill.

        What an earlier request left is removed by the server itself. In a window ring that is exact
        only while nothing that the block needs was overwritten (`placement.rolls_back`), and the
        server reuses only if it still sees an older position.
        """
        if self.block != block:
            return False
        if self.next_token is None:
            return True
        reused = not ring or (self.end <= ring or self.end - self.n_tokens < ring - window)
        return reused and placement.rolls_back(self.n_tokens, self.end, window, ring)


class Slots:
    """The slots of one server, shared by all processes that use it through this module."""

    def __init__(self, folder: Path, n_slots: int, seconds: float = 3600.0) -> None:
        """`folder`: the server's slot folder; `seconds`: how long to wait for one's turn."""
        self.folder = folder
        self.n_slots = n_slots
        self._seconds = seconds

    @contextmanager
    def lease(self, block: str | None) -> Iterator[Slot]:
        """A slot for one request, and the server for as long: the one that holds `block`, else an
        empty one, else the oldest.

        Changes of the yielded `Slot` are kept. After an exception the slot counts as empty, because
        nobody knows what it holds.

        Raises:
            StoreLocked: others computed for longer than `seconds`. StoreFull: the folder is gone or
            cannot be written.
        """
        from filelock import FileLock, Timeout

        # A lock of its own for each lease: one FileLock object counts nested acquisitions instead
        # of making a thread wait.
        lock = FileLock(self.folder / _LOCK, timeout=self._seconds, mode=0o600)
        try:
            lock.acquire()
        except Timeout as error:
            raise StoreLocked(
                f"others have used the server for {self._seconds:.0f} s",
                where=self.folder,
                hint="wait, or stop them",
            ) from error
        except OSError as error:
            raise _unusable(self.folder, error) from error
        try:
            book = self._read()
            chosen = next((s for s in book if block is not None and s.block == block), None) or min(
                book, key=lambda s: (s.block is not None, s.used)
            )
            # Before it is used: whoever is killed in the middle leaves a slot of which the book
            # says nothing.
            book[chosen.number] = Slot(chosen.number, used=time.time())
            self._write(book)
            yield chosen
            chosen.used = time.time()
            book[chosen.number] = chosen
            self._write(book)
        finally:
            lock.release()

    def book(self) -> list[Slot]:
        """What the slots hold, for a listing."""
        return self._read()

    def _read(self) -> list[Slot]:
        empty = [Slot(number) for number in range(self.n_slots)]
        try:
            book = records.read(self.folder / _BOOK, list[Slot], what="the book of the slots")
        except (OSError, FormatError):
            return empty
        return book if [slot.number for slot in book] == list(range(self.n_slots)) else empty

    def _write(self, book: list[Slot]) -> None:
        """Keep the book. Where there is no space for it there is none afterwards: an old one would
        say what is not so.
        """
        draft, kept = self.folder / f"{_BOOK}.new", self.folder / _BOOK
        try:
            draft.write_text(json.dumps([asdict(s) for s in book]), encoding="utf-8")
            os.replace(draft, kept)
        except OSError:
            try:
                draft.unlink(missing_ok=True)
                kept.unlink(missing_ok=True)
            except OSError as error:
                raise _unusable(self.folder, error) from error


def _unusable(folder: Path, error: OSError) -> StoreFull:
    return StoreFull("the server's slot folder cannot be used", got=error.strerror, where=folder)
