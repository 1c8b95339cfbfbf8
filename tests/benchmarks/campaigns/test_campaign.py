"""Campaigns go on where they stopped, repeat a case alone, and the document is what they found."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import campaign
import pytest
import tables

from taliesin.errors import EXIT_NO, EXIT_OK


def run(monkeypatch: pytest.MonkeyPatch, *words: str, bad: int = -1) -> tuple[int, list[str]]:
    """Exit code of a campaign of one kind, and the cases that it ran."""
    ran: list[str] = []

    @contextmanager
    def kind(_folder: Path) -> Iterator[campaign.Case]:
        def case(rng: random.Random) -> tuple[campaign.Outcome, str]:
            ran.append(f"{rng.random():.6f}")
            return ("wrong" if len(ran) - 1 == bad else "held"), ran[-1]

        yield case

    monkeypatch.setattr(sys, "argv", ["x", *words])
    code = campaign.main("x", "about", {"a": kind}, n=5, folder=tempfile.TemporaryDirectory)
    return code, ran


def test_a_campaign_goes_on_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "x.jsonl"
    _, whole = run(monkeypatch)
    code, first = run(monkeypatch, "--n", "2", "--out", str(out))
    with out.open("a") as file:
        file.write('{"kind": "a", "ca')  # torn by a kill
    assert (code, run(monkeypatch, "--out", str(out))) == (EXIT_OK, (EXIT_OK, whole[2:]))
    assert first == whole[:2]
    assert [row.case for row in campaign.read(out).rows] == [0, 1, 2, 3, 4]
    assert run(monkeypatch, "--out", str(out), "--seed", "2")[0] == 2


def test_a_case_is_run_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = run(monkeypatch)
    assert run(monkeypatch, "--case", "3") == (EXIT_OK, [whole[3]])


def test_a_bad_row_is_the_answer_no(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    assert run(monkeypatch, "--out", str(out), bad=1)[0] == EXIT_NO
    assert run(monkeypatch, "--out", str(out)) == (EXIT_NO, [])  # also of rows that were there
    assert "a 1: wrong" in tables.build(tmp_path)


def test_the_document_and_the_raw_results_agree() -> None:
    text = tables.DOCUMENT.read_text(encoding="utf-8")
    assert text == tables.build(tables.RESULTS), "python benchmarks/campaigns/tables.py"
