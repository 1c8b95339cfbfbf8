"""Listings, and the index, which is a cache and may be lost."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from taliesin.store import listing, trust
from taliesin.store.blockfile import BlockFile
from taliesin.store.library import Library
from tests.taliesin.store.blocks import (
    header,
    names,
    payload,
    read,
)

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_lost_index_is_built_again(store: Library) -> None:
    store.put("a", header(), payload(1))
    store.put("b", header(), payload(2))
    before = store.list()
    store.close()
    for path in store.path.glob("index.sqlite3*"):
        path.unlink()
    assert Library(store.path).list() == before


@pytest.mark.parametrize("content", [b"", b"not a database", b"SQLite format 3\0" + bytes(4000)])
def test_damaged_index_is_built_again(store: Library, content: bytes) -> None:
    before = [store.put("a", header(), payload(1)), store.put("b", header(), payload(2))]
    store.list()
    store.close()
    for path in store.path.glob("index.sqlite3*"):
        path.unlink()
    (store.path / "index.sqlite3").write_bytes(content)
    with Library(store.path) as again:
        assert again.list() == before
    with Library(store.path) as again:
        assert again.list() == before
        assert sqlite3.connect(store.path / "index.sqlite3").execute(
            "SELECT count(*) FROM refs"
        ).fetchone() == (2,)


def test_index_damaged_in_the_middle_is_built_again(store: Library) -> None:
    before = [store.put(f"block {i:03}", header("t" * 300), payload(i, 10)) for i in range(60)]
    store.list()
    store.close()
    path = store.path / "index.sqlite3"
    raw = bytearray(path.read_bytes())
    raw[4096:] = os.urandom(len(raw) - 4096)
    path.write_bytes(bytes(raw))
    with Library(store.path) as again:
        assert again.list() == before


def test_index_of_another_schema_is_built_again(store: Library) -> None:
    info = store.put("a", header(), payload())
    store.list()
    store.close()
    with sqlite3.connect(store.path / "index.sqlite3") as db:
        db.execute("PRAGMA user_version = 99")
    assert Library(store.path).list() == [info]


def test_listing_works_where_nothing_can_be_written(
    store: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = store.put("a", header(), payload())
    store.close()
    for path in store.path.glob("index.sqlite3*"):
        path.unlink()

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    real = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda path, **kw: real(path, **kw) if path == ":memory:" else refuse()
    )
    with Library(store.path) as again:
        assert again.list() == [info]
        again.mark_used(info.id)
        assert again.list()[0].last_used is not None


def test_listing_reads_only_what_changed(store: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(5):
        store.put(f"n{i}", header(), payload(i))
    store.list()
    opened: list[Path] = []
    real = BlockFile.open
    monkeypatch.setattr(BlockFile, "open", lambda path: opened.append(path) or real(path))
    assert len(store.list()) == 5
    assert opened == []
    info = Library(store.path).put("n5", header(), payload(5))
    opened.clear()
    assert len(store.list()) == 6
    assert opened == [store.block_path(info.id)]


def test_other_process_changes_are_seen_at_once(store: Library) -> None:
    other = Library(store.path)
    for i in range(10):
        other.put("a", header(), payload(i), replace=True)
        assert [read(store, str(line.name)) for line in store.list()] == [payload(i)]
        other.rename("a", "b")
        assert names(store) == ["b"]
        other.pin("b")
        assert store.list()[0].pinned
        other.remove("b")
        assert names(store) == []


def test_folder_that_was_quiet_is_not_read_again(
    store: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", header(), payload())
    for module in (listing, trust):
        monkeypatch.setattr(module, "_RACY_SECONDS", -1.0)
    before = store.list()
    monkeypatch.setattr(listing, "_scan_refs", lambda *_: pytest.fail("scanned"))
    monkeypatch.setattr(listing, "_scan_blocks", lambda *_: pytest.fail("scanned"))
    assert store.list() == before
