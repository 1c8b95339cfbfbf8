"""A short campaign of damages, and that it would see a reader that believes anything."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import campaign
import damage
import pytest

from taliesin.errors import ToolkitError

BAD = {"wrong", "lost", "crashed", "escaped"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _fd: None)


def outcomes(kind: str, folder: Path, n: int) -> list[tuple[campaign.Outcome, str]]:
    with damage.KINDS[kind](folder) as case:
        return [campaign.attempt(case, campaign.case_rng(2, kind, k)) for k in range(n)]


@pytest.mark.parametrize("kind", [kind for kind in damage.KINDS if kind != "graft"])
def test_damage_is_refused_or_without_effect(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from galahad.evidence.prereg import inputs

    monkeypatch.setattr(inputs, "package_sha256", lambda _name: "ab" * 32)
    found = outcomes(kind, tmp_path, 60)
    assert [said for said in found if said[0] in BAD] == []
    assert any("no effect" not in detail for _, detail in found)
    if kind != "slot-file":
        assert {outcome for outcome, _ in found} == {"held"}


@pytest.mark.native
def test_a_damaged_block_never_reaches_the_logits(tmp_path: Path) -> None:
    assert {outcome for outcome, _ in outcomes("graft", tmp_path, 20)} == {"held"}


def test_a_reader_that_believes_anything_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(200)))
    found = damage.cases(path, path.read_bytes)(random.Random(1))
    assert found[0] == "wrong"


def test_a_reader_that_breaks_is_a_crash_and_one_that_remembers_is_a_loss(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    seen: list[bytes] = []

    def remembers() -> Any:
        seen.append(path.read_bytes())
        if len(set(seen)) > 1:
            return "spoiled"
        return "sound"

    assert campaign.attempt(damage.cases(path, remembers), random.Random(1))[0] == "lost"

    def breaks() -> Any:
        if path.read_bytes() != b"0123456789":
            raise KeyError("x")
        return "sound"

    assert campaign.attempt(damage.cases(path, breaks), random.Random(1))[0] == "crashed"

    def refuses() -> Any:
        if path.read_bytes() != b"0123456789":
            raise ToolkitError("no")
        return "sound"

    assert campaign.attempt(damage.cases(path, refuses), random.Random(1))[0] == "held"
