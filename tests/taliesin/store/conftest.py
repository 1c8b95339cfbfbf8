"""A library in a temporary folder, for the tests of every module of `taliesin.store`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from taliesin.store.library import Library


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here pulls the plug; the order of flushes has a test of its own."""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)


@pytest.fixture
def store(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")
