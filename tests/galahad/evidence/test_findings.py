"""Readers of raw results: both versions of a verification, from both engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from galahad.evidence import findings
from taliesin.errors import FormatError

RESULTS = Path(__file__).parents[3] / "benchmarks/results"


def version_2(**fields: Any) -> dict[str, Any]:
    row = {"query_tokens": 7, "n_vectors": 17, "equal_block_then_query": 17, "equal_one_shot": 17}
    return as_version_2() | {"promise": "one-shot", "rows": [row], "statistics": None} | fields


def as_version_2() -> dict[str, Any]:
    first: dict[str, Any] = json.loads((RESULTS / "verify_cpu.json").read_text())
    return first | {
        "schema": "taliesin.verify/2",
        "engine": "embedded",
        "level": "logits",
        "inexact": [],
    }


def test_a_verification_of_version_1_and_its_twin_of_version_2_say_the_same() -> None:
    first = json.loads((RESULTS / "verify_cpu.json").read_text())
    assert first["schema"] == "taliesin.verify/1"
    assert findings.of(first, "a.json") == findings.of(as_version_2(), "a.json")
    assert {finding.claim for finding in findings.of(first, "a.json")} >= {"C1", "C2"}


def test_a_verification_of_a_server_counts_log_probabilities_and_has_no_statistics() -> None:
    lines = findings.of(version_2(engine="server"), "a.json")
    assert [line.claim for line in lines] == ["C1", "C1"]
    for line in lines:
        assert isinstance(line, findings.Line)
        assert line.cells["vectors equal"] == "17 of 17 (log-probabilities)"
        assert "llama-server" in str(line.cells["device"])


def raw_results() -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """By schema, every raw result of the checkout that has a reader."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for path in sorted(RESULTS.rglob("*.json")):
        document = json.loads(path.read_bytes())
        if isinstance(document, dict) and document.get("schema") in findings.READERS:
            name = path.relative_to(RESULTS).as_posix()
            found.setdefault(document["schema"], []).append((name, document))
    return found


RAW = raw_results()


@pytest.mark.parametrize("schema", sorted(RAW))
def test_every_raw_result_of_the_checkout_is_as_its_type_says(schema: str) -> None:
    for name, document in RAW[schema]:
        assert isinstance(findings.read(document, name), findings.READERS[schema])


@pytest.mark.parametrize("schema", sorted(RAW))
def test_a_field_too_many_missing_or_of_another_kind_is_one_error_that_names_it(
    schema: str,
) -> None:
    name, document = RAW[schema][0]
    with pytest.raises(FormatError, match="a field that its format does not have") as refused:
        findings.of(document | {"surprise": 1}, name)
    assert (refused.value.got, refused.value.where) == ("surprise", name)
    field = next(key for key, value in document.items() if isinstance(value, list | dict))
    with pytest.raises(FormatError, match=f"a raw result has no field {field}"):
        findings.of({k: v for k, v in document.items() if k != field}, name)
    with pytest.raises(
        FormatError, match=f"field {field} of a raw result is not as its"
    ) as refused:
        findings.of(document | {field: 5}, name)
    assert (refused.value.expected, refused.value.got) != (None, None)


def test_a_schema_without_a_reader_says_nothing() -> None:
    assert findings.of({"schema": "odd/1"}, "x.json") == []
    assert findings.of({"schema": ["taliesin.bench/1"]}, "x.json") == []
