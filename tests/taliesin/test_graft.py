"""What a graft costs in memory, as far as one process can tell without a model. `benchmarks/graft_memory.py` measures the whole."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from taliesin import graft

MEGABYTE = 1 << 20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * mmap.PAGESIZE


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_filler_that_is_only_read_takes_no_memory() -> None:
    before = resident_bytes()
    zeros = graft._zeros(64 * MEGABYTE, may_be_large=False)
    assert not any(zeros[:: mmap.PAGESIZE])
    assert resident_bytes() - before < 16 * MEGABYTE


def test_a_buffer_is_writable_and_zero() -> None:
    for may_be_large in (False, True):
        zeros = graft._zeros(9 * MEGABYTE, may_be_large)
        assert bytes(zeros) == bytes(9 * MEGABYTE)
        zeros[-1] = 7
        assert zeros[-1] == 7
