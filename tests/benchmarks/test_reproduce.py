"""docs/reproduction.md is what the raw results say, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from taliesin.errors import FormatError
from taliesin.host import records
from tests.galahad.doubles import an_arm, arm_row

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reproduce() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reproduce", ROOT / "benchmarks" / "reproduce.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reproduce"] = module
    spec.loader.exec_module(module)
    return module


def test_document_and_raw_results_agree(reproduce: ModuleType) -> None:
    text = reproduce.build(reproduce.load(reproduce.RESULTS), reproduce.claims())
    assert reproduce.DOCUMENT.read_text(encoding="utf-8") == text, "make reproduce"


def test_every_claim_of_the_paper_is_there_once(reproduce: ModuleType) -> None:
    ids = [claim["id"] for claim in reproduce.claims()]
    assert len(ids) == len(set(ids))
    assert {f"C{n}" for n in range(1, 23)} <= set(ids)
    for claim in reproduce.claims():
        assert claim["command"]
        assert not claim.get("test") or (ROOT / claim["test"]).exists(), claim["test"]


def test_claim_without_a_result_is_not_measured(reproduce: ModuleType, tmp_path: Path) -> None:
    text = reproduce.build(reproduce.load(tmp_path), reproduce.claims())
    assert text.count("ours: **not measured**") == len(reproduce.claims())


def test_changed_result_changes_the_document(reproduce: ModuleType, tmp_path: Path) -> None:
    shift = json.loads((reproduce.RESULTS / "shift_cpu.json").read_bytes())
    shift["shifts"][0]["statement"] = "moved by 1: KL 0.01"
    (tmp_path / "shift.json").write_text(json.dumps(shift))
    before = reproduce.build(reproduce.load(tmp_path), reproduce.claims())
    assert "moved by 1: KL 0.01 ([shift.json]" in before
    shift["shifts"][0]["statement"] = "moved by 1: KL 0.02"
    (tmp_path / "shift.json").write_text(json.dumps(shift))
    assert reproduce.build(reproduce.load(tmp_path), reproduce.claims()) != before


def test_result_that_lacks_a_field_is_one_error(reproduce: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text('{"schema": "taliesin.bench/1"}')
    with pytest.raises(FormatError, match="a raw result has no field"):
        reproduce.build(reproduce.load(tmp_path), reproduce.claims())
    (tmp_path / "bench.json").write_text("nothing")
    with pytest.raises(FormatError, match="not JSON"):
        reproduce.load(tmp_path)


def test_result_of_an_unknown_schema_is_listed(reproduce: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").write_text('{"schema": "odd/1"}\n{"schema": "odd/1"}\n')
    text = reproduce.build(reproduce.load(tmp_path), reproduce.claims())
    assert "Without a reader here: odd.jsonl." in text


def test_lines_with_the_same_columns_share_a_table_and_name_their_file(
    reproduce: ModuleType, tmp_path: Path
) -> None:
    row = arm_row("a", "right", 3)
    arm = records.plain(an_arm("recall", [row]))
    (tmp_path / "gpu").mkdir()
    for name in ("recall.json", "gpu/recall.json", "control-bank.json"):
        (tmp_path / name).write_text(json.dumps(arm))
    text = reproduce.build(reproduce.load(tmp_path), reproduce.claims())
    table = text[text.index("## C10") : text.index("## C11")]
    assert table.count("| model | arm |") == 1
    assert (
        "| 1/1 = 100.0% | 3 | 2.0 s | - | [recall.json](../benchmarks/results/gpu/recall.json) |"
        in table
    )
    assert "control-bank" not in table
    assert "control-bank" in text[text.index("## C16") : text.index("## C17")]
