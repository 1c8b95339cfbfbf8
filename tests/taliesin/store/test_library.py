"""Blocks by name and id: what a library stores, finds, renames and removes."""

from __future__ import annotations

import hashlib
import os
import shutil

import pytest

from taliesin.errors import (
    StoreDamaged,
    StoreMissing,
    UsageError,
)
from taliesin.store.library import Library
from tests.taliesin.store.blocks import (
    damage,
    header,
    names,
    payload,
    read,
)

pytestmark = pytest.mark.usefixtures("no_fsync")


def test_stored_block_is_found_by_name_and_by_id(store: Library) -> None:
    info = store.put("handbook", header("The Handbook"), payload())
    assert read(store, "handbook") == read(store, info.id) == read(store, info.id[:8]) == payload()
    assert (info.name, info.title, info.n_tokens, info.payload_bytes) == (
        "handbook",
        "The Handbook",
        20,
        5000,
    )
    assert store.list() == [info]
    assert store.info("handbook") == store.info(info.id[:9])._replace(name="handbook") == info
    path = store.path / "blocks" / info.id[:2] / f"{info.id}.kvb"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == info.id


def test_modes_let_nobody_else_in(store: Library) -> None:
    store.put("a", header(), payload())
    store.list()
    assert store.path.stat().st_mode & 0o777 == 0o700
    for path in store.path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert next(store.path.rglob("*.kvb")).stat().st_mode & 0o777 == 0o400


def test_taken_name_is_refused_and_replaced_on_request(store: Library) -> None:
    first = store.put("a", header(), payload(1))
    with pytest.raises(UsageError, match="'a' exists"):
        store.put("a", header(), payload(2))
    assert read(store, "a") == payload(1)
    second = store.put("a", header(), payload(2), replace=True)
    assert read(store, "a") == payload(2)
    assert store.list() == [second]
    with pytest.raises(StoreMissing):
        store.open(first.id)


def test_same_content_is_stored_once(store: Library) -> None:
    one = store.put("a", header(), payload())
    two = store.put("b", header(), payload())
    assert one.id == two.id
    assert len(list(store.path.rglob("*.kvb"))) == 1
    store.remove("a")
    assert read(store, "b") == payload()
    store.remove("b")
    assert not list(store.path.rglob("*.kvb"))


def test_storing_a_block_again_mends_its_file(store: Library) -> None:
    info = store.put("a", header(), payload())
    damage(store.block_path(info.id))
    with pytest.raises(StoreDamaged):
        read(store, "a")
    assert store.put("b", header(), payload()).id == info.id
    assert read(store, "a") == payload()


def test_replacing_keeps_the_pin(store: Library) -> None:
    store.put("a", header(), payload(1))
    store.pin("a")
    assert store.put("a", header(), payload(2), replace=True).pinned


def test_unknown_name_and_short_prefix_are_missing(store: Library) -> None:
    info = store.put("a", header(), payload())
    for wrong in ("b", "", info.id[:7], "0" * 8, "../a", "a\n", info.id + "0"):
        with pytest.raises(StoreMissing):
            store.open(wrong)


def test_ambiguous_prefix_is_refused(store: Library) -> None:
    info = store.put("a", header(), payload())
    twin = info.id[:10] + "0" * 54
    shutil.copy(store.block_path(info.id), store.block_path(twin))
    with pytest.raises(UsageError, match="2 blocks"):
        store.open(info.id[:10])
    store.open(info.id[:20]).close()


def test_name_wins_over_id(store: Library) -> None:
    info = store.put("a", header(), payload(1))
    store.put(info.id[:8], header(), payload(2))
    assert read(store, info.id[:8]) == payload(2)
    assert read(store, info.id[:9]) == payload(1)


def test_rename_moves_the_name_and_its_pin(store: Library) -> None:
    info = store.put("a", header(), payload())
    store.pin("a")
    assert store.rename("a", "b") == info._replace(name="b", pinned=True)
    assert names(store) == ["b"]
    store.put("c", header(), payload(3))
    with pytest.raises(UsageError, match="'c' exists"):
        store.rename("b", "c")
    with pytest.raises(StoreMissing):
        store.rename("a", "d")
    assert names(store) == ["b", "c"]


def test_block_without_a_name_is_listed_and_can_get_one(store: Library) -> None:
    info = store.put("a", header(), payload())
    (store.path / "refs" / "a.json").unlink()
    assert store.list() == [info._replace(name=None)]
    assert read(store, info.id) == payload()
    store.rename(info.id[:12], "b")
    assert names(store) == ["b"]


def test_removing_by_id_removes_all_its_names(store: Library) -> None:
    info = store.put("a", header(), payload())
    store.put("b", header(), payload())
    store.put("c", header(), payload(3))
    assert [line.name for line in store.remove(info.id)] == ["a", "b"]
    assert names(store) == ["c"]


def test_open_block_survives_its_removal(store: Library) -> None:
    store.put("a", header(), payload())
    with store.open("a") as block:
        store.remove("a")
        assert block.read_at(0, 5000) == payload()


def test_kv08_missing_block_behind_a_name_is_named(store: Library) -> None:
    info = store.put("a", header(), payload())
    store.block_path(info.id).unlink()
    with pytest.raises(StoreDamaged, match="'a' is missing"):
        store.open("a")
    assert store.list()[0].problem == store.info("a").problem == "the block is missing"
    store.remove("a")
    assert store.list() == []


def test_block_under_another_blocks_id_is_refused(store: Library) -> None:
    one = store.put("a", header(), payload(1))
    two = store.put("b", header(), payload(2))
    shutil.copy(store.block_path(two.id), store.path / "swap")
    os.replace(store.path / "swap", store.block_path(one.id))
    with pytest.raises(StoreDamaged, match="another block"):
        store.open("a")
    assert store.list()[0].problem == store.info("a").problem == "another block under this id"
