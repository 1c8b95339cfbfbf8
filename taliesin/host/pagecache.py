"""What of a file the kernel holds in memory, and letting go of it: so that a benchmark can say
which disk it read from.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def drop(path: Path) -> None:
    """Ask the kernel to forget its copy of a file; `cached_fraction` tells whether it did."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def warm(path: Path) -> None:
    """Read a file once, so that the kernel holds it."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass


def cached_fraction(path: Path) -> float | None:
    """Pages of the file that the kernel holds, from 0 to 1; None where it does not tell. Says
    nothing of a host's cache below.
    """
    size = path.stat().st_size
    n_pages = -(-size // mmap.PAGESIZE)
    held = (ctypes.c_ubyte * n_pages)()
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as view,
    ):
        # private and never written: only its address is wanted
        anchor = ctypes.c_char.from_buffer(view)
        code = _libc.mincore(ctypes.addressof(anchor), size, held)
        del anchor
    return None if code else sum(page & 1 for page in held) / n_pages
