"""A plan in a folder of its own, and packages whose source stands still."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from galahad.evidence.prereg import inputs
from tests.galahad.evidence.prereg.plans import still, write_plan


@pytest.fixture(autouse=True)
def still_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source of the packages does not change during a test, whoever is editing it."""
    monkeypatch.setattr(inputs, "package_sha256", still)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    return functools.partial(write_plan, tmp_path)


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(64))
    return path
