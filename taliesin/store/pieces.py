"""`PieceStore`: pieces of prompts in a folder, for the next process (docs/format.md, "Piece file").

    with PieceStore(folder, budget_bytes=10 << 30) as store, PrefixCache(..., store=store) as cache:
        ...

Promises: what `read` gives is whole and unchanged; a damaged, foreign or missing file is a miss,
never an error. `put` returns at once: files are written behind it, in order, and what waits is
bounded (then pieces are left out). A killed process leaves whole pieces and drafts, which the next
one removes. Over the budget the least recently used piece goes first, and no piece before the ones
that follow it. Several processes may share a folder.
Deliberately does not know: what a piece holds, and which prompts there are.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from taliesin.errors import FormatError, StoreDamaged, StoreFull, StoreMissing, ToolkitError
from taliesin.host import durable
from taliesin.store import piecefile
from taliesin.store.piecefolder import DRAFTS, PieceFolder

_DRAFT_SECONDS = 3600.0  # an older draft has no writer any more
_QUEUE_BYTES = 512 << 20
_EVICT_TO = 0.9  # of the budget, so that not every put has to look at the folder
_log = logging.getLogger("taliesin")


class PieceStore:
    """See the module.

    Args:
        folder: made if it is not there.
        recipe_id: SHA-256 of the recipe whose pieces are written.
        budget_bytes: what all files together may take.
        day_bytes: what may be written in 24 hours of this process; None: anything.

    Raises:
        StoreFull: the folder cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        recipe_id: str,
        *,
        budget_bytes: int,
        day_bytes: int | None = None,
    ) -> None:
        self.folder, self.recipe_id = folder, recipe_id
        self.budget_bytes, self.day_bytes = budget_bytes, day_bytes
        self.written_bytes = self.left_out = self.evicted = 0
        self.files = PieceFolder(folder)
        self._drafts = folder / DRAFTS
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._drafts.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise StoreFull(
                "the folder of the prefix cache cannot be made",
                got=error.strerror,
                where=folder,
                hint="--cache-folder, or --cache-disk 0",
            ) from error
        self._remove_old_drafts()
        self.used_bytes = sum(held.n_bytes for held in self.files.held())
        self._waiting: dict[str, bytes] = {}
        self._stamps: dict[str, float] = {}  # when what waits was used
        self.waiting_bytes = 0
        self._guard = threading.Lock()
        self._today: list[tuple[float, int]] = []
        self._failed: str | None = None
        self._jobs: queue.SimpleQueue[tuple[str, str, Sequence[int], bytes] | None] = (
            queue.SimpleQueue()
        )
        self._writer = threading.Thread(target=self._write_all, name="pieces", daemon=True)
        self._writer.start()

    def holds(self, name: str) -> bool:
        """Whether a piece seems to be there; nothing is read."""
        with self._guard:
            return name in self._waiting or self.files.path(name).exists()

    def read(self, name: str) -> bytes | None:
        """The payload of a piece; None if it cannot be had. A damaged file is removed, one of a
        later version is not.
        """
        with self._guard:
            waiting = self._waiting.get(name)
        if waiting is not None:
            return waiting
        path = self.files.path(name)
        try:
            return piecefile.read(path, name).payload
        except StoreMissing:
            return None
        except (ToolkitError, OSError) as error:
            _log.warning("a piece of the prefix cache is left out: %s", error)
            if isinstance(error, (StoreDamaged, FormatError)):
                with contextlib.suppress(OSError):
                    path.unlink()
            return None

    def put(self, name: str, parent: str, ids: Sequence[int], payload: bytes) -> None:
        """Have a piece written. Left out if too much waits or was written, or if the one before it
        is not there: it could never be used.
        """
        with self._guard:
            here = name in self._waiting or self.files.path(name).exists()
            orphan = bool(parent) and not (
                parent in self._waiting or self.files.path(parent).exists()
            )
            if here:
                return
            if orphan or self._failed or self.waiting_bytes + len(payload) > _QUEUE_BYTES:
                self.left_out += 1
                return
            self._waiting[name] = payload
            self._stamps[name] = time.time()
            self.waiting_bytes += len(payload)
        self._jobs.put((name, parent, ids, payload))

    def used(self, names: Sequence[str]) -> None:
        """Remember that a chain of pieces, first to last, was used now."""
        now = time.time()
        for index, name in enumerate(reversed(names)):
            # The first piece last: a piece is never older than the ones that follow it.
            stamp = now + index * 1e-6
            with self._guard:
                if name in self._waiting:
                    self._stamps[name] = stamp  # the writer sets it
                    continue
            with contextlib.suppress(OSError):
                os.utime(self.files.path(name), (stamp, stamp))

    def flush(self) -> None:
        """Wait until everything that was put is written."""
        while True:
            with self._guard:
                if not self._waiting:
                    return
            time.sleep(0.005)

    def close(self) -> None:
        """Write what waits, and stop."""
        self._jobs.put(None)
        self._writer.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing -----------------------------------------------------------------------------------

    def _write_all(self) -> None:
        while (job := self._jobs.get()) is not None:
            name, parent, ids, payload = job
            try:
                if self._failed or not self._may_write(len(payload)):
                    self.left_out += 1
                else:
                    self._write(name, parent, ids, payload)
                    self._set_times(name)
                    if self.used_bytes > self.budget_bytes:
                        self._evict()
            except (ToolkitError, OSError) as error:
                # A full disk stays full: say it once, and answer without the disk from here on.
                self._failed = str(error)
                _log.warning("the prefix cache writes no more pieces: %s", error)
            finally:
                with self._guard:
                    self._set_times(name)  # it may have been used since
                    del self._waiting[name], self._stamps[name]
                    self.waiting_bytes -= len(payload)

    def _set_times(self, name: str) -> None:
        stamp = self._stamps[name]
        with contextlib.suppress(OSError):
            os.utime(self.files.path(name), (stamp, stamp))

    def _write(self, name: str, parent: str, ids: Sequence[int], payload: bytes) -> None:
        made, head = piecefile.encode(self.recipe_id, parent, ids, payload)
        if made != name:
            raise ValueError(f"the piece is {made} and not {name}")
        path = self.files.path(name)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        with durable.replacing(path, draft=self._drafts / os.urandom(8).hex()) as file:
            file.write(head)
            file.write(payload)
        n_bytes = len(head) + len(payload)
        self.written_bytes += n_bytes
        self.used_bytes += n_bytes
        self._today.append((time.monotonic(), n_bytes))

    def _may_write(self, n_bytes: int) -> bool:
        if n_bytes > self.budget_bytes:
            return False
        if self.day_bytes is None:
            return True
        yesterday = time.monotonic() - 86400
        self._today = [(at, size) for at, size in self._today if at > yesterday]
        return sum(size for _, size in self._today) + n_bytes <= self.day_bytes

    def _evict(self) -> None:
        """Remove what was not used for longest, until a tenth of the budget is free."""
        removed, _, self.used_bytes = self.files.evict(self.budget_bytes * _EVICT_TO)
        self.evicted += removed

    def _remove_old_drafts(self) -> None:
        before = time.time() - _DRAFT_SECONDS
        for draft in self._drafts.iterdir():
            with contextlib.suppress(OSError):
                if draft.stat().st_mtime < before:
                    draft.unlink()
