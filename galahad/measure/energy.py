"""Energy that was used while something ran: NVML on NVIDIA, RAPL where it can be read, else not
measured.

Both are counters of a whole device, read at the two ends: the GPU boards, or the CPU packages, with
everything else that runs there. What a counter shows is late by up to its own step, so a reading is
a range; what lies below one step is not a number.
Deliberately does not know: what the energy was used for, and what electricity costs.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol, Self

from msgspec import Meta
from msgspec.structs import replace

from taliesin.host.records import Record

Joules = Annotated[float, Meta(ge=0, le=1e15)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]

NOT_MEASURED = "not measured"
POWERCAP = Path("/sys/class/powercap")

# How often the counter itself moves. NVML documents none; 0.1 s is the longest seen on data-centre
# boards (20 to 100 ms). RAPL is updated about once a millisecond (Intel SDM volume 3, section "RAPL
# interfaces").
_NVML_STEP_SECONDS = 0.1
_RAPL_STEP_SECONDS = 0.001


class Reading(Record):
    """Joules between the two ends of a measurement.

    `low` and `high` bound what was used; all three are None where it was not measured. `source`
    names the counter and what it covers; `step_seconds` is how coarse it is in time.
    """

    joules: Joules | None
    low: Joules | None
    high: Joules | None
    seconds: Seconds
    source: str
    step_seconds: Seconds | None


class Counter(Protocol):
    """A running total of joules."""

    source: str
    step_seconds: float

    def joules(self) -> list[float]:
        """The total of each part (board, package) now."""

    def used(self, before: list[float], after: list[float]) -> float:
        """Joules between two reads, at most one wrap-around of each part apart."""


@dataclass
class Rapl:
    """The package domains under `/sys/class/powercap`. Readable by root only on most kernels since
    2020.
    """

    folders: list[Path]
    step_seconds: float = _RAPL_STEP_SECONDS
    source: str = field(init=False)
    _wraps: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.source = f"RAPL, {len(self.folders)} CPU package(s), all processes"
        self._wraps = [
            int((f / "max_energy_range_uj").read_text(encoding="ascii")) / 1e6 for f in self.folders
        ]

    @classmethod
    def find(cls, root: Path = POWERCAP) -> Self | None:
        """The packages that can be read, or None. Subdomains (`intel-rapl:0:1`) are part of their
        package.
        """
        folders = []
        try:
            for folder in sorted(root.glob("intel-rapl:*")):
                if folder.name.count(":") == 1 and (folder / "name").read_text(
                    encoding="ascii"
                ).startswith("package"):
                    int((folder / "energy_uj").read_text(encoding="ascii"))
                    folders.append(folder)
            return cls(folders) if folders else None
        except (OSError, ValueError):
            return None

    def joules(self) -> list[float]:
        return [
            int((folder / "energy_uj").read_text(encoding="ascii")) / 1e6 for folder in self.folders
        ]

    def used(self, before: list[float], after: list[float]) -> float:
        parts = zip(before, after, self._wraps, strict=True)
        return sum(b - a if b >= a else b - a + wrap for a, b, wrap in parts)


@dataclass
class Nvml:
    """The total energy counters of the NVIDIA boards (Volta and later)."""

    library: Any
    handles: list[Any]
    step_seconds: float = _NVML_STEP_SECONDS
    source: str = field(init=False)

    def __post_init__(self) -> None:
        self.source = f"NVML, {len(self.handles)} GPU board(s), all processes"

    @classmethod
    def find(cls, library: Any = None) -> Self | None:
        """The boards, or None without nvidia-ml-py, a driver, or a counter."""
        try:
            pynvml = library or importlib.import_module("pynvml")
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            handles = [
                pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())
            ]
            for handle in handles:
                pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except pynvml.NVMLError:
            return None
        return cls(pynvml, handles) if handles else None

    def joules(self) -> list[float]:
        # The counter is in millijoules since the driver was loaded.
        return [
            self.library.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
            for handle in self.handles
        ]

    def used(self, before: list[float], after: list[float]) -> float:
        return sum(b - a for a, b in zip(before, after, strict=True))


def find() -> Counter | None:
    """The counter of this machine: the GPU's where there is one, since the model then runs
    there.
    """
    return Nvml.find() or Rapl.find()


class Meter:
    """Measures while it is open; `reading()` afterwards, or so far.

    with energy.Meter(energy.find()) as meter: ...
    meter.reading().joules
    """

    def __init__(self, counter: Counter | None) -> None:
        self._counter = counter
        self._before: list[float] = []
        self._after: list[float] | None = None
        self._started = self._ended = 0.0

    def __enter__(self) -> Self:
        self._before = self._read()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = time.perf_counter()
        self._after = self._read()

    def _read(self) -> list[float]:
        try:
            return self._counter.joules() if self._counter is not None else []
        except (OSError, ValueError):
            self._counter = None  # it went away: what was measured so far has no end
            return []

    def reading(self) -> Reading:
        after = self._read() if self._after is None else self._after
        seconds = (time.perf_counter() if self._after is None else self._ended) - self._started
        unknown = Reading(
            joules=None,
            low=None,
            high=None,
            seconds=seconds,
            source=NOT_MEASURED,
            step_seconds=None,
        )
        if self._counter is None or not self._before or not after:
            return unknown
        source, step = self._counter.source, self._counter.step_seconds
        if seconds <= step:
            return replace(unknown, source=f"{source}: shorter than its step", step_seconds=step)
        joules = self._counter.used(self._before, after)
        # Each end may be late by one step of the counter, at the mean power of the measurement.
        slack = joules / seconds * step
        return Reading(
            joules=joules,
            low=max(joules - slack, 0.0),
            high=joules + slack,
            seconds=seconds,
            source=source,
            step_seconds=step,
        )
