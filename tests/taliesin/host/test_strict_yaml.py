"""YAML that would mean something else than a person reads is refused, with its line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taliesin.errors import FormatError, UsageError
from taliesin.host import strict_yaml


def test_plain_data_loads() -> None:
    text = "a: 1\nb: [x, 2.5, true, null, -3]\n'010': 010x\n"
    assert strict_yaml.load(text, what="the plan", where="p") == {
        "a": 1,
        "b": ["x", 2.5, True, None, -3],
        "010": "010x",
    }


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("a: 1\na: 2\n", "given twice", "line 2, column 1"),
        ("x:\n  a: 1\n  a: 1\n", "given twice", "line 3, column 3"),
        ("a: &x 1\nb: *x\n", "an alias", "line 2, column 4"),
        ("a: 010\n", "would be read as 8", "line 1, column 4"),
        ("a: 1:30\n", "would be read as 90", "line 1, column 4"),
        ("a: 1_000\n", "would be read as 1000", "line 1, column 4"),
        ("a: [1\n", "expected", "line"),
    ],
)
def test_what_means_something_else_is_refused(text: str, said: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        strict_yaml.load(text, what="the plan", where="plan.yaml", error=UsageError)
    assert said in str(caught.value.got)
    assert line in str(caught.value.where)
    assert "plan.yaml" in str(caught.value.where)


@pytest.mark.parametrize(
    "text", ["a: !!int x\n", "a: 2025-13-45\n", "a: !!python/object:os.x {}\n"]
)
def test_what_no_loader_can_make_is_one_error(text: str) -> None:
    with pytest.raises(FormatError, match="the plan is not valid YAML"):
        strict_yaml.load(text, what="the plan", where="plan.yaml")


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_bytes(b"a: \xff\n")
    with pytest.raises(FormatError, match="not UTF-8"):
        strict_yaml.read(path, what="the plan")


@given(st.text(max_size=200))
def test_any_text_loads_or_is_one_error(text: str) -> None:
    with contextlib.suppress(FormatError):
        strict_yaml.load(text, what="the plan", where="plan.yaml")
