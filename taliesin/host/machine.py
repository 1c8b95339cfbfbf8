"""What this machine is, and what it gives a process."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

from taliesin import __version__
from taliesin.host import clock

LLAMA_CPP_PYTHON = "0.3.36"
"""The release that everything here was measured with: struct layout and state format change between
releases."""


def usable_cores() -> int:
    """Cores that this process may run on, which a container or `taskset` can make fewer than there
    are.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def cpu_name() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def driver_version() -> str | None:
    """The NVIDIA kernel driver's version, or None where there is none."""
    try:
        text = Path("/sys/module/nvidia/version").read_text(encoding="ascii")
    except OSError:
        return None
    return text.strip()


def system() -> str:
    """Operating system and instruction set: `Linux x86_64`."""
    return f"{platform.system()} {platform.machine()}"


def load_average() -> tuple[float, float, float] | None:
    """Of the last 1, 5 and 15 minutes; None where the system keeps none."""
    return os.getloadavg() if hasattr(os, "getloadavg") else None


def describe() -> dict[str, Any]:
    """What a figure must be read with: processor, load, versions, time. JSON-ready."""
    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "system": system(),
        "gpu_driver": driver_version(),
        "python": platform.python_version(),
        "taliesin": __version__,
        "llama_cpp_python": LLAMA_CPP_PYTHON,
        "load_average": load_average(),
        "time": clock.now(),
    }
