"""A plan means what it seems to mean; what does not fit is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from galahad.evidence import prereg
from taliesin.errors import UsageError


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"files": ["../x"]}, "does not leave the plan's folder"),
        ({"outputs": ["/tmp/x"]}, "does not leave the plan's folder"),
        ({"outputs": []}, "at least one output"),
        ({"predictions": []}, "a prediction that could fail"),
        ({"predictions": [{"statement": "x"}]}, r"has no field predictions\[0\]\.from"),
        ({"commands": []}, "a list of lists of words"),
        ({"commands": "rm -rf"}, "field commands .*array"),
        ({"commands": [[{"a": 1}]]}, r"field commands\[0\]\[0\] .*int \| float \| str"),
        ({"surprise": 1}, "surprise"),
        ({"title": ""}, "title"),
        ({"matrix": []}, "matrix"),
        ({"models": "x"}, "models"),
        ({"commands": [["echo", True]]}, r"field commands\[0\]\[1\] .*quote yes, no"),
        ({"commands": [[""]]}, "an empty word"),
        ({"commands": [["a\0b"]]}, "control character"),
        ({"title": "\x1b[31mred"}, "control character"),
        ({"files": ["."]}, "would change the input"),
        ({"files": ["out.json"]}, "would change the input"),
        ({"files": ["two\nlines"]}, "line break"),
        (
            {
                "predictions": [
                    {"statement": "s", "from": "out.json", "field": "n", "operator": [], "value": 1}
                ]
            },
            "operator",
        ),
        (
            {
                "predictions": [
                    {
                        "statement": "s",
                        "from": "out.json",
                        "field": "a / b / c",
                        "operator": ">",
                        "value": 1,
                    }
                ]
            },
            "share",
        ),
    ],
)
def test_malformed_plan_is_named(
    make: Callable[..., Path], changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError, match=f"(?s){what}"):
        prereg.lock(make(**changes))


def test_plan_that_is_not_yaml_or_not_there_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("a: [")
    with pytest.raises(UsageError, match="not valid YAML"):
        prereg.lock(tmp_path / "p.yaml")
    with pytest.raises(UsageError, match="cannot be read"):
        prereg.lock(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("title: again", "'title' is given twice"),
        ("matrix: {a: 1, a: 2}", "'a' is given twice"),
        ("matrix: {seeds: &seeds [1], again: *seeds}", "an alias"),
        ("matrix: {seed: 010}", "would be read as 8"),
        ("matrix: {time: 1:30:00}", "would be read as 5400"),
        ("matrix: {day: 2024-13-41}", "month"),
        ("matrix: {n: !!int x}", "invalid literal"),
        ("matrix: {n: !!bool x}", "x"),
        (f"matrix: {{n: {'1' * 5000}}}", "digits"),
        (f"matrix: {'[' * 2000}{']' * 2000}", "nested too deeply"),
    ],
)
def test_plan_that_reads_otherwise_than_it_is_written_is_refused(
    make: Callable[..., Path], line: str, what: str
) -> None:
    plan = make()
    fields = yaml.safe_load(plan.read_text())
    del fields["matrix"]
    plan.write_text(yaml.safe_dump(fields) + line + "\n")
    with pytest.raises(UsageError) as caught:
        prereg.lock(plan)
    assert what in str(caught.value)
    assert not prereg.lock_path(plan).exists()
