"""Which files count as hashed already."""

from __future__ import annotations

import pytest

from taliesin.errors import (
    UsageError,
)
from taliesin.store import listing, trust
from taliesin.store.library import Library
from tests.taliesin.store.blocks import (
    damage,
    header,
    payload,
)

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_file_is_verified_once_until_it_changes(
    store: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (listing, trust):
        monkeypatch.setattr(module, "_RACY_SECONDS", -1.0)
    info = store.put("a", header(), payload())
    with store.open("a") as block:
        assert store.needs_verification(block, "once")
        store.record_verified(block)
        assert not store.needs_verification(block, "once")
        assert store.needs_verification(block, "always")
        assert not store.needs_verification(block, "never")
    with Library(store.path).open("a") as block:
        assert not Library(store.path).needs_verification(block, "once")
    damage(store.block_path(info.id))
    with store.open("a") as block:
        assert store.needs_verification(block, "once")


def test_verification_of_a_file_changed_a_moment_ago_is_not_recorded(store: Library) -> None:
    store.put("a", header(), payload())
    with store.open("a") as block:
        store.record_verified(block)
        assert store.needs_verification(block, "once")


def test_verification_of_a_file_changed_meanwhile_is_not_recorded(
    store: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (listing, trust):
        monkeypatch.setattr(module, "_RACY_SECONDS", -1.0)
    info = store.put("a", header(), payload())
    with store.open("a") as block:
        damage(store.block_path(info.id))
        store.record_verified(block)
        assert store.needs_verification(block, "once")


def test_unknown_policy_is_refused(store: Library) -> None:
    store.put("a", header(), payload())
    with store.open("a") as block, pytest.raises(UsageError, match="policy"):
        store.needs_verification(block, "sometimes")  # type: ignore[arg-type]


def test_lost_index_means_verifying_again(store: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listing, trust):
        monkeypatch.setattr(module, "_RACY_SECONDS", -1.0)
    store.put("a", header(), payload())
    with store.open("a") as block:
        store.record_verified(block)
        store.close()
        for path in store.path.glob("index.sqlite3*"):
            path.unlink()
        assert Library(store.path).needs_verification(block, "once")
