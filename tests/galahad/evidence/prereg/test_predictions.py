"""What is measured, and when a prediction held."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from galahad.evidence import prereg
from galahad.evidence.prereg import predictions
from tests.galahad.evidence.prereg.plans import FORGER


@pytest.mark.parametrize("written", ["NaN", "Infinity", "1e999", "1" + "0" * 400, "[1]", "null"])
def test_what_is_no_finite_number_is_not_measured_and_loses_no_record(
    make: Callable[..., Path], written: str
) -> None:
    script = f"open('out.json', 'w').write('{{\"n\": 1, \"right\": {written}}}')"
    path, _ = prereg.lock(make(commands=[[sys.executable, "-c", script]]))
    found = prereg.run(path)
    assert found.intact
    assert [v.value for v in found.verdicts] == [None, None]
    assert prereg.check(path) == found


def test_place_in_a_list_is_a_plain_number(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": [5]}')
    assert predictions.measured(tmp_path / "x.json", "a.0") == 5
    for place in ("\u00b2", "\u0660", "1" * 5000, "-1"):
        assert predictions.measured(tmp_path / "x.json", f"a.{place}") is None


def test_failed_prediction_is_recorded_as_such(make: Callable[..., Path]) -> None:
    path, _ = prereg.lock(make(right=2))
    found = prereg.run(path)
    assert found.intact
    assert [v.held for v in found.verdicts] == [False, True]
    record = json.loads(prereg.record_path(path).read_bytes())
    assert [p["held"] for p in record["predictions"]] == [False, True]


def test_nothing_is_held_where_a_command_failed(make: Callable[..., Path]) -> None:
    write = [sys.executable, "-c", FORGER + "; raise SystemExit(1)"]
    refute = [sys.executable, "measure.py", 0]
    path, _ = prereg.lock(make(commands=[write, refute]))
    for found in (prereg.run(path), prereg.check(path)):
        assert [v.held for v in found.verdicts] == [None, None]
        assert [(i.what.split(":")[0], i.state) for i in found.items if "command" in i.what] == [
            ("command 1", "failed"),
            ("command 2", "not run"),
        ]
        assert found.items[-2].got == "exit code 1"
