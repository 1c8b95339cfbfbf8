"""What this machine gives a process."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores that this process may run on, which a container or `taskset` can make fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
