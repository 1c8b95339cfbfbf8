"""What commands print: aligned tables, strict JSON, sizes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from taliesin.host import console


def test_a_table_aligns_numbers_to_the_right_and_words_to_the_left() -> None:
    lines = console.table(("name", "n"), [("a", 7), ("longer", 1200)]).splitlines()
    assert lines == ["name       n", "a          7", "longer  1200"]


def test_a_markdown_cell_cannot_end_its_cell() -> None:
    lines = console.markdown_table(("what", "n"), [("a|b", 1)]).splitlines()
    assert lines == ["| what | n |", "| --- | --- |", "| a\\|b | 1 |"]


def test_json_has_no_nan_and_no_numpy() -> None:
    line = console.json_line(
        {"x": float("nan"), "y": [float("inf"), np.float32(1.5)], "z": np.int64(3)}
    )
    assert json.loads(line) == {"x": None, "y": [None, 1.5], "z": 3}
    assert "\n" not in line


@pytest.mark.parametrize(
    ("n", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (14_200_000, "14.2 MB"),
        (5 * 10**12, "5000.0 GB"),
    ],
)
def test_sizes_are_decimal(n: int, shown: str) -> None:
    assert console.human_bytes(n) == shown


def _listing(tmp_path: Path, redirect: str) -> subprocess.CompletedProcess[str]:
    command = f"{shlex.quote(sys.executable)} -m taliesin model list {redirect}"
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, cwd=tmp_path
    )


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_output_that_cannot_be_stored_is_an_error(tmp_path: Path) -> None:
    done = _listing(tmp_path, "> /dev/full")
    assert done.returncode == 13
    assert done.stderr.startswith("error: the output could not be written")


def test_a_closed_stdout_is_nobody_who_reads(tmp_path: Path) -> None:
    done = _listing(tmp_path, ">&-")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path, unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "taliesin", "model", "list"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        command, stdout=writing, stderr=subprocess.PIPE, check=False, cwd=tmp_path, env=environment
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
