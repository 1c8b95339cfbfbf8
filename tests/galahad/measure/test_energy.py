"""Energy: counters that wrap, vanish or are not there; a reading is a range, and never below the
counter's step.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from galahad.measure import energy


def package(
    root: Path, name: str, joules: float, wrap: float = 1000.0, label: str = "package-0"
) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(label + "\n")
    (folder / "energy_uj").write_text(f"{int(joules * 1e6)}\n")
    (folder / "max_energy_range_uj").write_text(f"{int(wrap * 1e6)}\n")
    return folder


def test_no_counter_is_not_measured() -> None:
    with energy.Meter(None) as meter:
        pass
    reading = meter.reading()
    assert (reading.joules, reading.low, reading.high, reading.source) == (
        None,
        None,
        None,
        energy.NOT_MEASURED,
    )


def test_rapl_sums_packages_and_leaves_subdomains_out(tmp_path: Path) -> None:
    first = package(tmp_path, "intel-rapl:0", 10)
    second = package(tmp_path, "intel-rapl:1", 20, label="package-1")
    package(tmp_path, "intel-rapl:0:0", 5, label="core")
    package(tmp_path, "intel-rapl:2", 5, label="psys")
    counter = energy.Rapl.find(tmp_path)
    assert counter is not None
    assert counter.folders == [first, second]
    assert counter.used([10, 20], [13, 24]) == pytest.approx(7)


def test_a_wrapped_counter_goes_on_counting(tmp_path: Path) -> None:
    package(tmp_path, "intel-rapl:0", 10)
    counter = energy.Rapl.find(tmp_path)
    assert counter is not None
    assert counter.used([990], [15]) == pytest.approx(25)


@pytest.mark.parametrize("fault", ["absent", "unreadable", "not a number"])
def test_rapl_that_cannot_be_read_is_no_counter(tmp_path: Path, fault: str) -> None:
    if fault != "absent":
        folder = package(tmp_path, "intel-rapl:0", 10)
        (folder / "energy_uj").unlink()
        if fault == "not a number":
            (folder / "energy_uj").write_text("N/A\n")
    assert energy.Rapl.find(tmp_path) is None


def test_a_reading_is_a_range_of_one_step_at_each_end(tmp_path: Path) -> None:
    folder = package(tmp_path, "intel-rapl:0", 100)
    counter = energy.Rapl.find(tmp_path)
    with energy.Meter(counter) as meter:
        time.sleep(0.02)
        (folder / "energy_uj").write_text("103000000\n")
    reading = meter.reading()
    assert reading.joules == pytest.approx(3)
    assert reading.low is not None
    assert reading.high is not None
    slack = 3 / reading.seconds * counter.step_seconds  # type: ignore[union-attr]
    assert reading.high - 3 == pytest.approx(slack)
    assert 3 - reading.low == pytest.approx(slack)
    assert "RAPL" in reading.source


def test_what_is_shorter_than_the_step_is_no_number(tmp_path: Path) -> None:
    package(tmp_path, "intel-rapl:0", 100)
    counter = energy.Rapl.find(tmp_path)
    assert counter is not None
    counter.step_seconds = 60.0
    with energy.Meter(counter) as meter:
        pass
    assert meter.reading().joules is None
    assert "shorter than its step" in meter.reading().source


def test_a_counter_that_vanishes_makes_it_not_measured(tmp_path: Path) -> None:
    folder = package(tmp_path, "intel-rapl:0", 100)
    with energy.Meter(energy.Rapl.find(tmp_path)) as meter:
        (folder / "energy_uj").unlink()
    assert meter.reading().source == energy.NOT_MEASURED


def nvml(n_boards: int = 2, supported: bool = True) -> SimpleNamespace:
    """A stand-in for pynvml with the names that are used of it."""

    class NVMLError(Exception):
        pass

    def total(handle: int) -> int:
        if not supported:
            raise NVMLError
        return 1_000_000 * (handle + 1)

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: n_boards,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=total,
    )


def test_nvml_sums_boards_in_joules() -> None:
    counter = energy.Nvml.find(nvml())
    assert counter is not None
    assert counter.joules() == [1000.0, 2000.0]
    assert counter.used([1000, 2000], [1001.5, 2001]) == pytest.approx(2.5)
    assert "2 GPU" in counter.source


@pytest.mark.parametrize("library", [nvml(0), nvml(supported=False)])
def test_boards_without_a_counter_are_no_counter(library: SimpleNamespace) -> None:
    assert energy.Nvml.find(library) is None
