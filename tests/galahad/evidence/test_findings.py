"""Readers of raw results: both versions of a verification, from both engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from galahad.evidence import findings

RESULTS = Path(__file__).parents[3] / "benchmarks/results"


def version_2(**fields: Any) -> dict[str, Any]:
    row = {"query_tokens": 7, "n_vectors": 17, "equal_block_then_query": 17, "equal_one_shot": 17}
    report = {
        "schema": "taliesin.verify/2",
        "engine": "embedded",
        "n_tokens": 1024,
        "promise": "one-shot",
        "trials": 1,
        "rows": [row],
        "statistics": None,
        "sabotage": None,
        "recipe": json.loads((RESULTS / "verify_cpu.json").read_text())["recipe"],
    }
    return report | fields


def test_a_verification_of_version_1_and_its_twin_of_version_2_say_the_same() -> None:
    first = json.loads((RESULTS / "verify_cpu.json").read_text())
    assert first["schema"] == "taliesin.verify/1"
    second = first | {"schema": "taliesin.verify/2", "engine": "embedded", "inexact": []}
    assert list(findings.of(first)) == list(findings.of(second))
    assert {finding.claim for finding in findings.of(first)} >= {"C1", "C2"}


def test_a_verification_of_a_server_counts_log_probabilities_and_has_no_statistics() -> None:
    lines = list(findings.of(version_2(engine="server")))
    assert [line.claim for line in lines] == ["C1", "C1"]
    for line in lines:
        assert isinstance(line, findings.Line)
        assert line.cells["vectors equal"] == "17 of 17 (log-probabilities)"
        assert "llama-server" in str(line.cells["device"])
