"""The file of an arm: what was written comes back, and anything else is refused by its field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from galahad.errors import SuiteError
from galahad.measure import arm
from taliesin.host import records
from tests.galahad.doubles import an_arm
from tests.galahad.doubles import arm_row as row

GOLDEN = Path(__file__).parents[2] / "golden" / "arm_v1.json"


def test_an_arm_comes_back_from_its_file(tmp_path: Path) -> None:
    made = an_arm("recall", [row("a", "right", 3), row("b", "wrong", 2)])
    path = tmp_path / "a.json"
    made.write(path)
    assert arm.load(path) == made
    assert made.totals.tokens_out == 5
    assert made.totals.causes == {"answer": 2}
    assert path.stat().st_mode & 0o077 == 0


def test_an_arm_of_before_the_typed_record_is_read(tmp_path: Path) -> None:
    found = arm.load(GOLDEN)
    assert (found.kind, found.n_out, str(found.accuracy)[:10]) == ("recall", 7, "1/2 = 50.0")
    found.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == GOLDEN.read_bytes()


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"schema": "galahad.arm/1"}', '{"schema": "galahad.arm/1", "rows": [1]}'],
)
def test_a_file_that_is_no_arm_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SuiteError, match="the arm"):
        arm.load(path)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("schema", "galahad.arm/2", "schema"),
        ("engine", "x", "engine"),
        ("energy", [], "energy"),
        ("energy", {"joules": "x"}, "energy.joules"),
        ("settings", None, "settings"),
        ("kind", ["recall"], "kind"),
        ("created", 1, "created"),
        ("rows", [{**records.plain(row("a", "right", 3)), "sha256": []}], "rows[0].sha256"),
        ("rows", [{**records.plain(row("a", "right", 3)), "n_out": "3"}], "rows[0].n_out"),
        ("rows", [{**records.plain(row("a", "right", 3)), "grade": "good"}], "rows[0].grade"),
        ("rows", [{**records.plain(row("a", "right", 3)), "id": None}], "rows[0].id"),
    ],
)
def test_a_field_of_another_kind_is_named(
    tmp_path: Path, field: str, value: Any, named: str
) -> None:
    fields = records.plain(an_arm("recall", [row("a", "right", 3)])) | {field: value}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(SuiteError) as refused:
        arm.load(path)
    assert refused.value.message == f"field {named} of the arm is not as its format says"
    assert refused.value.where == path


def test_a_time_that_is_no_number_is_refused(tmp_path: Path) -> None:
    text = json.dumps(records.plain(an_arm("recall", [row("a", "right", 3)])))
    path = tmp_path / "a.json"
    path.write_text(text.replace('"seconds": 2.0', '"seconds": NaN', 1), encoding="utf-8")
    with pytest.raises(SuiteError, match="not valid JSON"):
        arm.load(path)
