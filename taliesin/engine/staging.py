"""Host memory that states are read into and handed to a GPU from: page-locked once, and used again.

A state of a gigabyte in new memory costs a page fault for each of its pages, and the driver copies
what is not page-locked at a seventh of the speed. Locking touches pages one by one, so it is done
when they were filled already (`lock`).

Promises: memory that any view still refers to is not handed out again, whoever keeps the view and
however long; and bytes that the taker calls filler are zero, however the memory was used before.
Filler is written only where the layout is not the one before.
Deliberately does not know: what a state is. One object is for one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

from taliesin.host import pagelock

Range = tuple[int, int]
"""Bytes [start, end)."""

_LARGE_BYTES = 8 << 20
# large pages make filler real memory: not where it is more than this part of what is stored
_LARGE_FILLER = 0.25
_GRANULE = 2 << 20  # regions end on a large page
_WASTE = 2  # a free region serves what takes more than this part of it


def fresh(n_bytes: int, filler: Sequence[Range]) -> memoryview:
    """At least `n_bytes` of page-aligned zeros, for one use. Filler that is only read takes no
    memory in small pages.
    """
    n_filler = sum(end - start for start, end in filler)
    return memoryview(_pages(n_bytes, large=n_filler <= _LARGE_FILLER * (n_bytes - n_filler)))


def _pages(n_bytes: int, large: bool) -> mmap.mmap:
    """Zeros; in large pages, where there are any: a gigabyte in small ones costs a quarter of a
    million page faults.
    """
    # Private: pages of a shared map become real ones when they are only read.
    pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if large and n_bytes >= _LARGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


class _Region:
    """One mapping. `locked` is None until it was tried; `zeros` are the ranges known to be zero,
    None: all of it.
    """

    def __init__(self, n_bytes: int) -> None:
        self.pages = _pages(n_bytes, large=True)
        self.locked: bool | None = None
        self.zeros: tuple[Range, ...] | None = None

    @property
    def n_bytes(self) -> int:
        return len(self.pages)

    def lock(self) -> bool:
        if self.locked is None:
            self.locked = pagelock.lock(memoryview(self.pages))
        return self.locked

    def clear(self, filler: tuple[Range, ...]) -> None:
        """Make `filler` zero; the rest is the taker's to write."""
        if self.zeros is not None and self.zeros != filler:
            start_of = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
            for start, end in filler:
                ctypes.memset(start_of + start, 0, end - start)
        self.zeros = filler

    def release(self) -> None:
        """Unlock; the mapping itself goes with its last reference."""
        if self.locked:
            pagelock.unlock(memoryview(self.pages))
            self.locked = None


@dataclass
class Staging:
    """Regions of memory, lent and taken back. `spare` free ones are kept, the most recently
    used.
    """

    spare: int = 2
    _free: list[_Region] = field(init=False, default_factory=list)  # least recently used first
    _lent: dict[int, _Region] = field(init=False, default_factory=dict)  # by address
    _closed: bool = field(init=False, default=False)

    def take(self, n_bytes: int, filler: Sequence[Range]) -> memoryview:
        """Page-aligned writable memory of at least `n_bytes`, zero in `filler` and undefined
        elsewhere.

        It is lent until the last view of it is gone. Whoever has it writes outside `filler` only.
        """
        fitting = [
            region
            for region in self._free
            if n_bytes <= region.n_bytes <= max(_WASTE * n_bytes, _GRANULE)
        ]
        if fitting:
            region = min(fitting, key=lambda one: one.n_bytes)
            self._free.remove(region)
        else:
            region = _Region(-(-n_bytes // _GRANULE) * _GRANULE)
        region.clear(tuple(filler))
        # Views of an array keep the array, not the mapping: it goes when the last of them does.
        lent = (ctypes.c_uint8 * region.n_bytes).from_buffer(region.pages)
        address = ctypes.addressof(lent)
        self._lent[address] = region
        weakref.finalize(lent, self._returned, address).atexit = False
        return memoryview(lent).cast("B")

    def lock(self, memory: memoryview) -> bool:
        """Lock memory that `take` gave; whether it is locked, which is tried once."""
        return self._lent[pagelock.address(memory)].lock()

    @property
    def free_bytes(self) -> int:
        """What is kept and not lent."""
        return sum(region.n_bytes for region in self._free)

    def close(self) -> None:
        """Let go of what is free now, and of what is lent as soon as it comes back."""
        self._closed = True
        self._trim(0)

    def _returned(self, address: int) -> None:
        self._free.append(self._lent.pop(address))
        self._trim(0 if self._closed else self.spare)

    def _trim(self, spare: int) -> None:
        while len(self._free) > spare:
            self._free.pop(0).release()
