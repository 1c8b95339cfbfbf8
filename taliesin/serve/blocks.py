"""Which block of the library a prompt begins with, and the last few blocks kept ready.

Promises: a block that cannot be used is never an error of a request that did not name it: the
request is answered without it, and stderr says why. An absent library is an empty one.
Deliberately does not know: how an engine grafts; it gives `usable` and `graft`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from taliesin.errors import (
    CertificateMismatch,
    FormatError,
    StoreDamaged,
    StoreMissing,
    ToolkitError,
    UnsupportedVersion,
)
from taliesin.host import console
from taliesin.store.blockfile import BlockFile
from taliesin.store.library import Library

# A block that is not what it was, as far as that is known without computing.
_UNUSABLE = (StoreMissing, StoreDamaged, FormatError, UnsupportedVersion, CertificateMismatch)

G = TypeVar("G")


@dataclass
class Blocks(Generic[G]):
    """The blocks of one library as one engine sees them. For one thread at a time.

    usable: raises a ToolkitError for a block of another model or recipe; graft: makes a block
    ready; kept: how many stay ready.
    """

    library: Path | None
    usable: Callable[[BlockFile], object]
    graft: Callable[[BlockFile, Library], G]
    kept: int
    _tokens: dict[str, npt.NDArray[np.int32]] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)
    _ready: dict[str, G] = field(default_factory=dict)

    def named(self, name: str) -> G:
        """The block of that name or id.

        Raises:
            StoreMissing: there is none. Others: it cannot be used.
        """
        with Library(self.library, create=False) as store:
            key = store.info(name).id
        return self._made_ready(key)

    def longest_prefix(self, ids: Sequence[int]) -> G | None:
        """The longest usable block whose ids begin `ids` and end before them."""
        given = np.asarray(ids, np.int64)
        unusable: set[str] = set()
        while (key := self._longest(given, unusable)) is not None:
            try:
                return self._made_ready(key)
            except _UNUSABLE as error:
                console.warn(f"answered without block {key[:12]}: {error}")
                unusable.add(key)
        return None

    def _longest(self, given: npt.NDArray[np.int64], unusable: set[str]) -> str | None:
        with self._store() as store:
            if store is None:
                return None
            listed = {info.id for info in store.list() if info.problem is None} - unusable
            for key in listed - set(self._tokens) - self._refused:
                self._look_at(store, key)
        found = [
            key
            for key in listed & set(self._tokens)
            if len(self._tokens[key]) < len(given)
            and np.array_equal(self._tokens[key], given[: len(self._tokens[key])])
        ]
        return max(found, key=lambda key: len(self._tokens[key]), default=None)

    def _look_at(self, store: Library, key: str) -> None:
        try:
            block = store.open(key)
        except _UNUSABLE as error:
            console.warn(f"block {key[:12]} cannot be used: {error}")
            return
        with block:
            try:
                self.usable(block)
            except ToolkitError:
                self._refused.add(key)  # of another model or recipe: it stays so
            else:
                self._tokens[key] = block.header.tokens

    def _made_ready(self, key: str) -> G:
        if key not in self._ready:
            with Library(self.library, create=False) as store, store.open(key) as block:
                self._ready[key] = self.graft(block, store)
                self._tokens.setdefault(key, block.header.tokens)
            while len(self._ready) > self.kept:
                del self._ready[next(iter(self._ready))]
        return self._ready[key]

    @contextmanager
    def _store(self) -> Iterator[Library | None]:
        """The library; None where there is none yet."""
        try:
            store = Library(self.library, create=False)
        except StoreMissing:
            yield None
            return
        with store:
            yield store
