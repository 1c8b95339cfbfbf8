"""One error for each way in which a record can be other than its type says."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taliesin.errors import FormatError, ModelError
from taliesin.host import records
from taliesin.host.records import Record


class Step(Record):
    name: str
    seconds: float = 0.0


class Plan(Record):
    SCHEMA = "test.plan/1"
    title: str
    steps: list[Step]
    seed: int = 0
    colours: dict[Literal["red", "blue"], int] | None = None

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError("a seed of at least 0")


GOOD = {"title": "t", "steps": [{"name": "a", "seconds": 1}], "seed": 3}


def test_a_record_reads_and_writes_back() -> None:
    plan = records.decode(json.dumps(GOOD).encode(), Plan, what="the plan")
    assert plan == Plan(title="t", steps=[Step(name="a", seconds=1.0)], seed=3)
    assert records.convert(records.plain(plan), Plan, what="the plan") == plan


@pytest.mark.parametrize(
    ("change", "message", "expected", "got"),
    [
        ({"seed": "3"}, "field seed of the plan", "int", '"3"'),
        ({"seed": True}, "field seed of the plan", "int", "true"),
        ({"seed": -1}, "the plan", "a seed of at least 0", None),
        ({"steps": [{"name": 1}]}, "field steps[0].name of the plan", "str", "1"),
        ({"steps": None}, "field steps of the plan", "array", "null"),
        ({"colours": {"grey": 1}}, "a key of field colours", "Invalid enum value 'grey'", None),
        ({"more": 1}, "a field that its format does not have", None, "more"),
        ({"steps": [{"name": "a", "x": 1}]}, "does not have", None, "steps[0].x"),
    ],
)
def test_a_wrong_field_is_one_error_that_names_it(
    change: dict[str, Any], message: str, expected: str | None, got: str | None
) -> None:
    with pytest.raises(FormatError) as caught:
        records.convert(GOOD | change, Plan, what="the plan", where="plan.json")
    error = caught.value
    assert message in error.message
    assert error.where == "plan.json"
    assert expected is None or expected in str(error.expected)
    assert got is None or str(error.got) == got


def test_a_missing_field_is_named_with_its_place() -> None:
    with pytest.raises(ModelError, match=r"the plan has no field steps\[0\]\.name"):
        records.convert(
            {"title": "t", "steps": [{}]}, Plan, what="the plan", error=ModelError, where="x"
        )


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b'{"title": "t", "title": "u", "steps": []}', "'title' is given twice"),
        (b'{"title": "t", "steps": [{"name": "a", "seconds": NaN}]}', "NaN is not JSON"),
        (b'{"title": "t", "steps": [{"name": "a", "seconds": -Infinity}]}', "-Infinity is not"),
        (b'{"title": "\\ud800", "steps": []}', "surrogates"),
        (b'{"title": "\xff", "steps": []}', "invalid start byte"),
        (b'{"title": "t"', "delimiter"),
    ],
)
def test_json_that_says_more_than_one_thing_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(FormatError) as caught:
        records.decode(raw, Plan, what="the plan")
    assert said in str(caught.value.got)


def test_a_deep_value_is_refused_without_a_traceback() -> None:
    with pytest.raises(FormatError, match="nested too deeply"):
        records.parse(b"[" * 200_000, what="the plan")


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(FormatError) as caught:
        records.convert(GOOD | {"seed": "x" * 10_000}, Plan, what="the plan")
    assert len(str(caught.value.got)) <= 80


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_any_value_is_a_plan_or_one_error(value: Any) -> None:
    with contextlib.suppress(FormatError):
        records.convert(value, Plan, what="the plan")


def test_read_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("[]")
    with pytest.raises(FormatError) as caught:
        records.read(path, Plan, what="the plan")
    assert caught.value.where == path


def test_the_schema_is_closed_and_named() -> None:
    schema = records.schema(Plan)
    assert schema["title"] == "test.plan/1"
    plan = schema["$defs"]["Plan"]
    assert plan["additionalProperties"] is False
    assert plan["required"] == ["title", "steps"]
    assert issubclass(Plan, msgspec.Struct)
