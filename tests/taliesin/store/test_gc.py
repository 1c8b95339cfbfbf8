"""Making room."""

from __future__ import annotations

import os
import time

import pytest

from taliesin.errors import (
    UsageError,
)
from taliesin.store.library import Library
from tests.taliesin.store.blocks import (
    files,
    header,
    names,
    payload,
)

pytestmark = pytest.mark.usefixtures("no_fsync")


def three_blocks(store: Library) -> int:
    """Blocks a, b, c of one size, used in the order b, a, c; the size comes back."""
    infos = {name: store.put(name, header(), payload(i)) for i, name in enumerate("abc")}
    for at, name in enumerate("bac"):
        store.index.mark_used(infos[name].id, time.time() + at)
    return infos["a"].file_bytes


def test_gc_removes_the_least_recently_used_first(store: Library) -> None:
    size = three_blocks(store)
    report = store.gc(2 * size)
    assert ([line.name for line in report.removed], report.freed_bytes, report.kept_bytes) == (
        ["b"],
        size,
        2 * size,
    )
    assert names(store) == ["a", "c"]
    store.gc(0)
    assert names(store) == []
    assert not list(store.path.rglob("*.kvb"))


def test_gc_keeps_pinned_blocks_and_says_so(store: Library) -> None:
    size = three_blocks(store)
    store.pin("b")
    report = store.gc(0)
    assert names(store) == ["b"]
    assert report.kept_bytes == size > report.budget_bytes
    store.pin("b", pinned=False)
    store.gc(0)
    assert names(store) == []


def test_gc_dry_run_changes_nothing(store: Library) -> None:
    size = three_blocks(store)
    before = files(store)
    assert [line.name for line in store.gc(size, dry_run=True).removed] == ["b", "a"]
    assert files(store) == before


def test_gc_removes_blocks_without_a_name_first(store: Library) -> None:
    size = three_blocks(store)
    (store.path / "refs" / "c.json").unlink()
    assert [line.name for line in store.gc(2 * size).removed] == [None]


def test_gc_removes_all_names_of_a_block_or_none(store: Library) -> None:
    three_blocks(store)
    store.put("b again", header(), payload(1))
    assert [line.name for line in store.gc(2 * store.info("a").file_bytes).removed] == [
        "b",
        "b again",
    ]
    store.put("a again", header(), payload(0))
    store.pin("a again")
    store.gc(0)
    assert names(store) == ["a", "a again"]


def test_gc_without_an_index_goes_by_the_time_of_storing(store: Library) -> None:
    infos = [store.put(name, header(), payload(i)) for i, name in enumerate("abc")]
    for age, info in zip((3, 1, 2), infos, strict=True):
        os.utime(store.block_path(info.id), (time.time(), time.time() - age))
    assert [line.name for line in store.gc(infos[0].file_bytes).removed] == ["a", "c"]


def test_negative_budget_is_refused(store: Library) -> None:
    with pytest.raises(UsageError):
        store.gc(-1)
