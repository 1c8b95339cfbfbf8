"""The library: names, index, lock, crash safety, check, gc, bundles. Writers are killed for real,
in forked processes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import sys
import tarfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taliesin.errors import (
    FormatError,
    StoreDamaged,
    StoreFull,
    StoreLocked,
    StoreMissing,
    ToolkitError,
    UnsupportedVersion,
    UsageError,
)
from taliesin.host.canonical import canonical_json
from taliesin.store import blockfile, library, listing, refs, trust
from taliesin.store.blockfile import BlockFile
from taliesin.store.check import check as check_library
from taliesin.store.header import BlockHeader
from taliesin.store.library import Library
from taliesin.store.refs import checked_name

GOLDEN = Path(__file__).parents[2] / "golden"


def header(title: str = "a title") -> BlockHeader:
    return BlockHeader(
        title=title,
        created="2026-01-31T12:00:00Z",
        recipe={"n_ubatch": 512},
        equals="block-then-query",
        tokens=np.arange(20, dtype=np.int32),
        tail=np.zeros(0, np.int32),
    )


def payload(seed: int = 0, n_bytes: int = 5000) -> bytes:
    return np.random.default_rng(seed).bytes(n_bytes)


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here pulls the plug; the order of flushes has a test of its own."""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)


@pytest.fixture
def store(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")


def names(store: Library) -> list[str | None]:
    return [line.name for line in store.list()]


def read(store: Library, name: str) -> bytes:
    with store.open(name) as block:
        destination = bytearray(block.payload_bytes)
        block.read_into([(0, memoryview(destination))], verify=True)
        return bytes(destination)


def files(store: Library) -> dict[str, bytes]:
    """Every file but the cache and the lock."""
    return {
        str(path.relative_to(store.path)): path.read_bytes()
        for path in sorted(store.path.rglob("*"))
        if path.is_file() and not path.name.startswith(("index.sqlite3", "lock"))
    }


TRAILER = 64  # a block of one chunk: its digest and the root


def damage(path: Path, offset: int = -TRAILER - 1) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(raw))
    path.chmod(0o400)


# -- storing and finding ---------------------------------------------------------------------------


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


# -- names -----------------------------------------------------------------------------------------


@given(name=st.text(min_size=1, max_size=80))
@settings(max_examples=200, deadline=None)
def test_any_name_stays_one_file_in_refs_and_reads_back(name: str) -> None:
    try:
        checked = checked_name(name)
    except UsageError:
        return
    file = refs.file_of(checked)
    assert b"/" not in file
    assert not file.startswith(b".")
    assert len(file) <= 240
    assert refs.name_of(file) == checked


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/abs",
        ".",
        "..",
        ".hidden",
        "a/b",
        "a\\b",
        "100%",
        "%2F",
        "ŵy 諸子",
        "-rf",
        "e\u0301",
        "CON",
        "a.json",
    ],
)
def test_odd_name_is_only_a_name(store: Library, name: str) -> None:
    before = set(store.path.parent.iterdir())
    store.put(name, header(), payload())
    assert set(store.path.parent.iterdir()) == before
    assert len(list((store.path / "refs").iterdir())) == 1
    assert names(store) == [checked_name(name)]
    assert read(store, name) == payload()
    store.rename(name, "plain")
    assert names(store) == ["plain"]


def test_composed_and_decomposed_spelling_are_one_name(store: Library) -> None:
    store.put("caf\u00e9", header(), payload())
    assert read(store, "cafe\u0301") == payload()


@pytest.mark.parametrize(
    "name",
    [
        "",
        " a",
        "a ",
        "a\nb",
        "a\0b",
        "\x1b[31m",
        "a\u202eb",
        "\ud800",
        "x" * 201,
        "諸" * 81,
        "\u00a0a",
    ],
)
def test_malformed_name_is_refused(store: Library, name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        store.put(name, header(), payload())
    assert files(store).keys() == {"library.json"}


# -- the index is a cache --------------------------------------------------------------------------


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


# -- opening a folder ------------------------------------------------------------------------------


def test_missing_library_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="no library"):
        Library(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreMissing, match="folder"):
        Library(tmp_path / "file")


def test_library_of_a_user_is_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("TALIESIN_LIBRARY", str(tmp_path / "only the commands read this"))
    assert library.default_path() == Library().path == tmp_path / "taliesin" / "library"


def test_foreign_folder_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("x")
    with pytest.raises(FormatError, match="holds other things"):
        Library(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photo.jpg"]


def test_half_made_library_is_finished(tmp_path: Path) -> None:
    (tmp_path / "blocks").mkdir()
    (tmp_path / "tmp").mkdir()
    assert Library(tmp_path).list() == []


def test_newer_or_foreign_marker_is_refused(store: Library) -> None:
    marker = store.path / "library.json"
    marker.write_text('{"format":"taliesin-library","version":2}')
    with pytest.raises(UnsupportedVersion, match="version 2"):
        Library(store.path)
    for wrong in ("", "{}", '{"format":"other","version":1}', "[]"):
        marker.write_text(wrong)
        with pytest.raises(FormatError):
            Library(store.path)


@pytest.mark.parametrize("part", ["blocks", "refs", "tmp", "quarantine", "lock", "index.sqlite3"])
def test_kv16_symlink_in_place_of_a_part_is_refused(
    store: Library, tmp_path: Path, part: str
) -> None:
    store.put("a", header(), payload())
    store.list()
    store.close()
    os.rename(store.path / part, tmp_path / "elsewhere")
    (store.path / part).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreDamaged, match="symbolic link"):
        Library(store.path)


def test_kv16_symlink_in_place_of_a_block_a_folder_or_a_name_is_refused(
    store: Library, tmp_path: Path
) -> None:
    info = store.put("a", header(), payload())
    path = store.block_path(info.id)
    os.rename(path, tmp_path / "outside.kvb")
    path.symlink_to(tmp_path / "outside.kvb")
    with pytest.raises(FormatError, match="symbolic link"):
        store.open("a")
    path.unlink()
    os.rename(tmp_path / "outside.kvb", path)

    os.rename(path.parent, tmp_path / "folder")
    path.parent.symlink_to(tmp_path / "folder")
    with pytest.raises(StoreDamaged, match="symbolic link"):
        store.open("a")
    path.parent.unlink()
    os.rename(tmp_path / "folder", path.parent)

    ref = store.path / "refs" / "a.json"
    os.rename(ref, tmp_path / "a.json")
    ref.symlink_to(tmp_path / "a.json")
    with pytest.raises(StoreDamaged, match="symbolic link"):
        store.open("a")
    store.put("a", header(), payload(2), replace=True)
    assert not ref.is_symlink()
    assert json.loads((tmp_path / "a.json").read_text())["block"] == info.id


def test_kv16_storing_never_writes_through_a_symlink(store: Library, tmp_path: Path) -> None:
    info = store.put("a", header(), payload())
    path = store.block_path(info.id)
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    path.unlink()
    path.symlink_to(outside)
    store.put("b", header(), payload())
    assert outside.read_bytes() == b"precious"
    assert not path.is_symlink()


# -- trust -----------------------------------------------------------------------------------------


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


# -- gc --------------------------------------------------------------------------------------------


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


# -- check -----------------------------------------------------------------------------------------


def kinds(store: Library, **options: Any) -> list[tuple[str, bool]]:
    """(kind, whether something was done about it) of every finding."""
    return [
        (finding.kind, finding.action is not None)
        for finding in check_library(store, **options).findings
    ]


def test_sound_library_has_no_findings(store: Library) -> None:
    store.put("a", header(), payload(1))
    store.put("b", header(), payload(2))
    report = check_library(store)
    assert (report.findings, report.n_blocks, report.n_sound, report.n_refs) == ([], 2, 2, 2)
    assert report.sound
    assert report.complete


@pytest.mark.parametrize("offset", [0, 9, 200, 6000, -TRAILER - 1, -40, -1])
def test_check_finds_damage_anywhere_and_moves_it_only_on_request(
    store: Library, offset: int
) -> None:
    info = store.put("a", header(), payload())
    store.put("b", header(), payload(2))
    damage(store.block_path(info.id), offset)
    before = files(store)
    expected = "newer-version" if offset == 9 else "damaged-block"
    assert kinds(store) == [(expected, False)]
    assert files(store) == before
    if offset == 9:
        return
    assert kinds(store, repair=True) == [("damaged-block", True), ("dangling-ref", True)]
    assert names(store) == ["b"]
    assert kinds(store) == []
    assert sorted(
        path.name.split(".")[0] for path in (store.path / "quarantine").iterdir()
    ) == sorted([info.id, "a"])
    store.put("a", header(), payload())
    assert read(store, "a") == payload()


def test_quick_check_reads_headers_only(store: Library) -> None:
    info = store.put("a", header(), payload())
    damage(store.block_path(info.id))
    assert kinds(store, deep=False) == []
    assert kinds(store, deep=True) == [("damaged-block", False)]


def test_check_finds_a_valid_block_under_another_id(store: Library) -> None:
    one = store.put("a", header(), payload(1))
    two = store.put("b", header(), payload(2))
    shutil.copy(store.block_path(two.id), store.path / "tmp" / "swap")
    os.replace(store.path / "tmp" / "swap", store.block_path(one.id))
    assert kinds(store) == [("damaged-block", False), ("damaged-ref", False)]


def test_check_finds_damaged_and_dangling_names(store: Library) -> None:
    store.put("a", header(), payload(1))
    info = store.put("b", header(), payload(2))
    (store.path / "refs" / "a.json").write_text("{}")
    store.block_path(info.id).unlink()
    assert [line.problem for line in store.list()][:2] == [
        "the name is damaged",
        "the block is missing",
    ]
    assert sorted(kinds(store)) == [
        ("damaged-ref", False),
        ("dangling-ref", False),
        ("unnamed-block", False),
    ]
    assert sorted(kinds(store, repair=True)) == [
        ("damaged-ref", True),
        ("dangling-ref", True),
        ("unnamed-block", False),
    ]
    assert kinds(store) == [("unnamed-block", False)]
    assert check_library(store).sound


def test_damaged_name_can_be_replaced(store: Library) -> None:
    store.put("a", header(), payload(1))
    (store.path / "refs" / "a.json").write_text("{}")
    with pytest.raises(StoreDamaged, match="'a' is damaged"):
        store.open("a")
    store.put("a", header(), payload(2), replace=True)
    assert read(store, "a") == payload(2)


def test_check_reports_strangers_and_leaves_them(store: Library) -> None:
    store.put("a", header(), payload())
    strangers = ["notes.txt", "blocks/readme", "refs/x.txt", "refs/.hidden.json", "blocks/zz.kvb"]
    for stranger in strangers:
        (store.path / stranger).write_text("x")
    (store.path / "blocks" / "ab").mkdir(exist_ok=True)
    (store.path / "blocks" / "ab" / "stray.kvb").write_text("x")
    found = check_library(store, repair=True)
    assert sorted(
        finding.path for finding in found.findings if finding.kind == "foreign-file"
    ) == sorted([s for s in strangers if s != "refs/.hidden.json"] + ["blocks/ab/stray.kvb"])
    assert all((store.path / s).exists() for s in strangers if s != "refs/.hidden.json")
    assert names(store) == ["a"]


def test_kv16_check_moves_symlinks_away(store: Library, tmp_path: Path) -> None:
    info = store.put("a", header(), payload())
    outside = tmp_path / "outside"
    os.rename(store.block_path(info.id), outside)
    store.block_path(info.id).symlink_to(outside)
    (store.path / "refs" / "b.json").symlink_to(tmp_path / "nowhere")
    assert sorted(kinds(store, repair=True)) == [
        ("dangling-ref", True),
        ("symlink", True),
        ("symlink", True),
    ]
    assert outside.exists()
    assert kinds(store) == []


def test_check_puts_modes_right(store: Library) -> None:
    info = store.put("a", header(), payload())
    store.block_path(info.id).chmod(0o644)
    store.path.chmod(0o755)
    assert kinds(store) == [("permissions", False)] * 2
    assert kinds(store, repair=True) == [("permissions", True)] * 2
    assert kinds(store) == []


def test_check_removes_what_a_killed_writer_left_and_nothing_of_a_living_one(
    store: Library,
) -> None:
    (store.path / "tmp" / "dead").mkdir()
    (store.path / "tmp" / "dead" / "draft").write_bytes(b"x")
    (store.path / "tmp" / "ref-dead").write_bytes(b"x")
    (store.path / "tmp" / "link").symlink_to(store.path / "blocks")
    with store.workspace() as living:
        (living / "draft").write_bytes(b"x")
        assert (living / "draft").exists()
        # The workspace removed the dead ones already; put one back.
        (store.path / "tmp" / "ref-dead").write_bytes(b"x")
        other = Library(store.path)
        assert kinds(other) == [("leftover", False)]
        assert kinds(other, repair=True) == [("leftover", True)]
        assert (living / "draft").exists()
    assert list((store.path / "tmp").iterdir()) == []
    assert (store.path / "blocks").is_dir()


def test_check_stops_after_a_time_and_goes_on_with_the_oldest(
    store: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (listing, trust):
        monkeypatch.setattr(module, "_RACY_SECONDS", -1.0)
    for i in range(4):
        store.put(f"n{i}", header(), payload(i))
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    order: list[Path] = []
    real = BlockFile.verify
    monkeypatch.setattr(
        BlockFile, "verify", lambda self, *a: order.append(self.path) or real(self, *a)
    )
    first = check_library(store, max_seconds=2.5)
    assert not first.complete
    assert first.n_sound == len(order) == 2
    assert first.sound
    check_library(store, max_seconds=2.5)
    assert len(set(order)) == 4


def test_newer_block_is_reported_and_not_moved(store: Library) -> None:
    info = store.put("a", header(), payload())
    content = (GOLDEN / "damaged" / "version_2.kvb").read_bytes()
    os.unlink(store.block_path(info.id))
    block_id = hashlib.sha256(content).hexdigest()
    store.block_path(block_id).parent.mkdir(exist_ok=True)
    store.block_path(block_id).write_bytes(content)
    store.block_path(block_id).chmod(0o400)
    assert kinds(store, repair=True) == [
        ("newer-version", False),
        ("dangling-ref", True),
        ("unnamed-block", False),
    ]
    assert store.block_path(block_id).exists()
    assert "version 2" in str(store.list()[0].problem)


# -- bundles ---------------------------------------------------------------------------------------


def test_bundle_carries_blocks_to_another_library(store: Library, tmp_path: Path) -> None:
    infos = [store.put(name, header(name), payload(i)) for i, name in enumerate(["a", "b/c", "ŵ"])]
    store.put("a again", header("a"), payload(0))
    size = store.export(["a", "b/c", "ŵ", "a again"], tmp_path / "out.tar")
    assert size == (tmp_path / "out.tar").stat().st_size
    other = Library(tmp_path / "other")
    report = other.import_(tmp_path / "out.tar")
    assert [line.id for line in report.added] == [info.id for info in infos] + [infos[0].id]
    assert names(other) == ["a", "a again", "b/c", "ŵ"]
    assert check_library(other).findings == []
    again = other.import_(tmp_path / "out.tar")
    assert (again.added, again.present) == ([], ["a", "b/c", "ŵ", "a again"])


def test_golden_bundle_of_version_1_is_read(store: Library) -> None:
    [info] = store.import_(GOLDEN / "bundle_v1.tar").added
    assert info.id == (GOLDEN / "block_v1.sha256").read_text()[:64]
    assert names(store) == ["golden"]
    with store.open("golden") as block:
        assert block.header.extra == {"written_by": "a later program"}


def test_exported_golden_block_gives_the_golden_bundle(store: Library, tmp_path: Path) -> None:
    store.import_(GOLDEN / "bundle_v1.tar")
    store.export(["golden"], tmp_path / "out.tar")
    assert (tmp_path / "out.tar").read_bytes() == (GOLDEN / "bundle_v1.tar").read_bytes()


def test_any_tar_program_can_open_a_bundle(store: Library, tmp_path: Path) -> None:
    info = store.put("a", header(), payload())
    store.export(["a"], tmp_path / "out.tar")
    with tarfile.open(tmp_path / "out.tar") as tar:
        assert tar.getnames() == ["manifest.json", f"blocks/{info.id}.kvb"]
        content = tar.extractfile(f"blocks/{info.id}.kvb")
        assert content is not None
        assert hashlib.sha256(content.read()).hexdigest() == info.id


def test_damaged_block_is_not_exported(store: Library, tmp_path: Path) -> None:
    info = store.put("a", header(), payload())
    damage(store.block_path(info.id))
    with pytest.raises(StoreDamaged):
        store.export(["a"], tmp_path / "out.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["library"]


def test_existing_file_is_not_overwritten_by_an_export(store: Library, tmp_path: Path) -> None:
    store.put("a", header(), payload())
    (tmp_path / "out.tar").write_bytes(b"mine")
    with pytest.raises(UsageError, match="exists"):
        store.export(["a"], tmp_path / "out.tar")
    assert (tmp_path / "out.tar").read_bytes() == b"mine"


def test_import_refuses_a_taken_name_and_loses_nothing(store: Library, tmp_path: Path) -> None:
    store.put("golden", header(), payload())
    before = files(store)
    with pytest.raises(UsageError, match="belongs to another block"):
        store.import_(GOLDEN / "bundle_v1.tar")
    assert files(store) == before
    store.import_(GOLDEN / "bundle_v1.tar", replace=True)
    assert len(store.list()) == 1


def test_import_that_the_caller_does_not_accept_lets_nothing_in(store: Library) -> None:
    seen = []

    def refuse(name: str, block: BlockFile) -> None:
        seen.append((name, block.header.title))
        raise UsageError("not this one")

    before = files(store)
    with pytest.raises(UsageError, match="not this one"):
        store.import_(GOLDEN / "bundle_v1.tar", accept=refuse)
    assert seen == [("golden", "Gwern ap Llwyd — a golden block")]
    assert files(store) == before


BLOCK = (GOLDEN / "block_v1.kvb").read_bytes()
BLOCK_ID = hashlib.sha256(BLOCK).hexdigest()


def forge_bundle(
    path: Path,
    members: list[tuple[Any, bytes]] | None = None,
    entries: Any = None,
    tar_format: int = tarfile.GNU_FORMAT,
    **manifest: Any,
) -> Path:
    """A bundle of the golden block, with what is given in place of the right things. A member: name
    or TarInfo, content.
    """
    entry = {"name": "golden", "id": BLOCK_ID, "bytes": len(BLOCK), "root": BLOCK[-32:].hex()}
    fields = {
        "format": "taliesin-bundle",
        "version": 1,
        "blocks": [entry] if entries is None else entries,
    } | manifest
    raw = canonical_json(fields)
    with tarfile.open(path, "w", format=tar_format) as tar:
        for name, content in (
            members
            if members is not None
            else [("manifest.json", raw), (f"blocks/{BLOCK_ID}.kvb", BLOCK)]
        ):
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content if content != b"MANIFEST" else raw))
    return path


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "name": "golden",
        "id": BLOCK_ID,
        "bytes": len(BLOCK),
        "root": BLOCK[-32:].hex(),
    } | changes


def manifest_of(*entries: dict[str, Any]) -> bytes:
    return canonical_json({"format": "taliesin-bundle", "version": 1, "blocks": list(entries)})


def link(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = "/etc/passwd"
    return info


MEMBER = f"blocks/{BLOCK_ID}.kvb"


@pytest.mark.parametrize(
    ("forgery", "error", "message"),
    [
        ({"members": []}, FormatError, "manifest.json first|not a bundle"),
        ({"members": [(MEMBER, BLOCK)]}, FormatError, "not a bundle"),
        ({"members": [("manifest.json", b"{}")]}, FormatError, "not a bundle"),
        ({"members": [("manifest.json", b"not json")]}, FormatError, "manifest"),
        ({"members": [(link("manifest.json", tarfile.SYMTYPE), b"")]}, FormatError, "not a bundle"),
        ({"version": 2}, UnsupportedVersion, "version 2"),
        ({"version": True}, FormatError, "field version of"),
        ({"version": 1.0}, FormatError, "field version of"),
        ({"version": 0}, FormatError, "field (version|blocks) of"),
        ({"entries": {}}, FormatError, "field (version|blocks) of"),
        ({"entries": [7]}, FormatError, r"blocks\[0\]"),
        ({"entries": [entry(id="../../x")]}, FormatError, r"blocks\[0\]"),
        ({"entries": [entry(id=BLOCK_ID.upper())]}, FormatError, r"blocks\[0\]"),
        ({"entries": [entry(bytes="9")]}, FormatError, r"blocks\[0\]"),
        ({"entries": [entry(bytes=True)]}, FormatError, r"blocks\[0\]"),
        ({"entries": [entry(more=1)]}, FormatError, r"blocks\[0\]"),
        ({"entries": [entry(name="a\nb")]}, UsageError, "name"),
        ({"entries": [entry(name="e\u0301")]}, FormatError, "NFC"),
        ({"entries": [entry(), entry()]}, FormatError, "twice"),
        ({"entries": [entry(), entry(name="b", bytes=5)]}, FormatError, "two ways"),
        ({"entries": [entry(root="0" * 64)]}, FormatError, "root"),
        ({"entries": [entry(bytes=len(BLOCK) + 1)]}, FormatError, "size"),
        ({"entries": [entry(id="0" * 64)]}, FormatError, "does not list"),
        ({"members": [("manifest.json", manifest_of(entry()))]}, FormatError, "ends before"),
        (
            {"members": [("manifest.json", manifest_of(entry())), ("../evil", BLOCK)]},
            FormatError,
            "does not list",
        ),
        (
            {"members": [("manifest.json", manifest_of(entry())), ("/abs", BLOCK)]},
            FormatError,
            "does not list",
        ),
        (
            {
                "members": [
                    ("manifest.json", manifest_of(entry())),
                    (link(MEMBER, tarfile.SYMTYPE), b""),
                ]
            },
            FormatError,
            "list",
        ),
        (
            {
                "members": [
                    ("manifest.json", manifest_of(entry())),
                    (link(MEMBER, tarfile.LNKTYPE), b""),
                ]
            },
            FormatError,
            "list",
        ),
        (
            {
                "members": [
                    ("manifest.json", manifest_of(entry())),
                    (link(MEMBER, tarfile.FIFOTYPE), b""),
                ]
            },
            FormatError,
            "list",
        ),
        (
            {"members": [("manifest.json", manifest_of(entry())), (MEMBER, BLOCK), ("more", b"x")]},
            FormatError,
            "goes on",
        ),
        (
            {"members": [("manifest.json", manifest_of(entry())), (MEMBER, BLOCK[:-1] + b"!")]},
            StoreDamaged,
            "is damaged",
        ),
        (
            {
                "members": [
                    (
                        "manifest.json",
                        manifest_of(entry(id=hashlib.sha256(b"x" * 500).hexdigest(), bytes=500)),
                    ),
                    (f"blocks/{hashlib.sha256(b'x' * 500).hexdigest()}.kvb", b"x" * 500),
                ]
            },
            FormatError,
            "not a block file",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else getattr(value, "__name__", str(value)),
)
def test_bundle_that_breaks_a_rule_lets_nothing_in(
    store: Library, tmp_path: Path, forgery: dict[str, Any], error: type[ToolkitError], message: str
) -> None:
    path = forge_bundle(tmp_path / "forged.tar", **forgery)
    before = files(store)
    with pytest.raises(error) as caught:
        store.import_(path)
    assert re.search(message, str(caught.value))
    assert files(store) == before


def test_block_with_a_wrong_chunk_table_is_not_imported(store: Library, tmp_path: Path) -> None:
    # Only a faulty or hostile writer makes this: the file's hash is right, and a chunk's digest in
    # the header is not.
    at = len(BLOCK) - 4 * 32 - 1  # the last byte of the payload
    bad = BLOCK[:at] + b"!" + BLOCK[at + 1 :]
    bad_id = hashlib.sha256(bad).hexdigest()
    members = [("manifest.json", manifest_of(entry(id=bad_id))), (f"blocks/{bad_id}.kvb", bad)]
    with pytest.raises(StoreDamaged, match="chunk 2"):
        store.import_(forge_bundle(tmp_path / "forged.tar", members))
    assert store.list() == []


@given(cut=st.integers(0, 20479))
@settings(max_examples=40, deadline=None)
def test_bundle_cut_anywhere_lets_nothing_in(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    base = tmp_path_factory.getbasetemp()
    raw = (GOLDEN / "bundle_v1.tar").read_bytes()
    path = base / "cut.tar"
    path.write_bytes(raw[:cut])
    with Library(base / "cut-library") as store:
        if any(raw[cut:]):
            with pytest.raises((FormatError, StoreDamaged)):
                store.import_(path)
            assert store.list() == []


@given(offset=st.integers(0, 16_800), bit=st.integers(0, 7))
@settings(max_examples=100, deadline=None)
def test_flipped_bit_in_a_bundle_never_gets_in(
    tmp_path_factory: pytest.TempPathFactory, offset: int, bit: int
) -> None:
    base = tmp_path_factory.getbasetemp()
    raw = bytearray((GOLDEN / "bundle_v1.tar").read_bytes())
    raw[offset] ^= 1 << bit
    path = base / "flipped.tar"
    path.write_bytes(bytes(raw))
    with Library(base / "flipped-library") as store:
        try:
            store.import_(path)
        except ToolkitError:
            assert store.list() == []
            return
        # Padding of the tar, or the name in the manifest: what came in is still the block, whole.
        [line] = store.list()
        assert line.id == BLOCK_ID
        assert check_library(store).findings == []
        store.gc(0)


def test_pax_and_gzip_bundles_are_refused(store: Library, tmp_path: Path) -> None:
    long_name = tarfile.TarInfo("x" * 200)
    forge_bundle(tmp_path / "pax.tar", [(long_name, b"x")], tar_format=tarfile.PAX_FORMAT)
    with tarfile.open(tmp_path / "gz.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("manifest.json"), io.BytesIO())
    for name in ("pax.tar", "gz.tar"):
        with pytest.raises(FormatError):
            store.import_(tmp_path / name)


# -- killed, full, at once -------------------------------------------------------------------------

# Everything through which a writer changes the file system.
STEPS = ("mkdir", "open", "pwritev", "fsync", "rename", "unlink", "rmdir", "chmod", "fchmod")


def kill_at(step: int) -> None:
    """From now on, this process dies with SIGKILL at its `step`-th change of the file system, a
    write half done.
    """
    count = 0

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if name == "open" and not (len(args) > 1 and args[1] & os.O_CREAT):
                return real(*args, **kwargs)
            count += 1
            if count == step:
                if name == "pwritev":
                    real(args[0], [args[1][0][: len(args[1][0]) // 2]], args[2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return stepped

    for name in STEPS:
        setattr(os, name, wrap(name, getattr(os, name)))


def in_child(action: Callable[[], None]) -> int:
    """Run `action` in a forked process; its exit status: 0, or 1 after an exception, or minus the
    signal.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def prepared(path: Path) -> None:
    with Library(path) as store:
        store.put("old", header("old"), payload(1))
        store.put("twin", header("old"), payload(1))
        store.put("other", header("other"), payload(2))
        store.pin("other")
        store.list()


OPERATIONS: dict[str, tuple[Callable[[Library], object], dict[str, int]]] = {
    # operation -> what it does, and which payload every name leads to afterwards
    "put": (
        lambda s: s.put("new", header("new"), payload(9)),
        {"old": 1, "twin": 1, "other": 2, "new": 9},
    ),
    "replace": (
        lambda s: s.put("other", header("new"), payload(9), replace=True),
        {"old": 1, "twin": 1, "other": 9},
    ),
    "rename": (lambda s: s.rename("old", "new"), {"new": 1, "twin": 1, "other": 2}),
    "remove": (lambda s: s.remove("other"), {"old": 1, "twin": 1}),
    "remove one name": (lambda s: s.remove("twin"), {"old": 1, "other": 2}),
    "pin": (lambda s: s.pin("old"), {"old": 1, "twin": 1, "other": 2}),
    "gc": (lambda s: s.gc(0), {"other": 2}),
    "import": (
        lambda s: s.import_(GOLDEN / "bundle_v1.tar"),
        {"old": 1, "twin": 1, "other": 2, "golden": -1},
    ),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_writer_killed_at_any_moment_leaves_a_library_that_is_readable_and_complete(
    tmp_path: Path, operation: str
) -> None:
    action, after = OPERATIONS[operation]
    prepared(tmp_path / "base")
    before = {"old": 1, "twin": 1, "other": 2}
    n_killed = 0
    for step in range(1, 200):
        path = tmp_path / "try"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tmp_path / "base", path)

        def killed(path: Path = path, step: int = step) -> None:
            store = Library(path)
            kill_at(step)
            action(store)

        status = in_child(killed)
        assert status in (0, -signal.SIGKILL), f"step {step}"
        with Library(path) as store:
            report = check_library(store)
            assert report.sound, report.findings
            assert {finding.kind for finding in report.findings} <= {"leftover", "unnamed-block"}
            lines = [line for line in store.list() if line.name is not None]
            assert all(line.problem is None for line in lines)
            seen = {str(line.name) for line in lines}
            for name in seen:
                assert read(store, name) in {
                    payload(s[name]) if s[name] >= 0 else golden_payload()
                    for s in (before, after)
                    if name in s
                }
            # Each name is as before or as after: nothing that both states have is missing, nothing
            # is there that neither has.
            assert before.keys() & after.keys() <= seen <= before.keys() | after.keys()
            if status == 0:
                assert seen == after.keys()
                break
            n_killed += 1
            try:
                action(store)
            except (UsageError, StoreMissing):
                assert seen == after.keys()  # it had been done
            assert {str(line.name) for line in store.list() if line.name} == after.keys()
            check_library(store, repair=True)
            assert [f for f in check_library(store).findings if f.kind != "unnamed-block"] == []
    else:
        pytest.fail("the operation never came to its end")
    assert n_killed >= 3


def golden_payload() -> bytes:
    with BlockFile.open(GOLDEN / "block_v1.kvb") as block:
        return block.read_at(0, block.payload_bytes)


def test_files_are_flushed_in_the_documented_order(
    store: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def place(path: str | Path) -> str:
        relative = Path(path).relative_to(store.path)
        return (
            "tmp"
            if relative.parts[0] == "tmp"
            else "/".join(relative.parts[:2])
            if len(relative.parts) < 3
            else "block"
        )

    rename, unlink = os.rename, os.unlink
    monkeypatch.setattr(
        os, "fsync", lambda fd: steps.append(f"flush {place(os.readlink(f'/proc/self/fd/{fd}'))}")
    )
    monkeypatch.setattr(
        os, "rename", lambda a, b: (steps.append(f"{place(a)} to {place(b)}"), rename(a, b))
    )
    info = store.put("a", header(), payload())
    folder = f"blocks/{info.id[:2]}"
    assert steps == [
        "flush tmp",  # the payload
        "flush tmp",  # the header
        "flush blocks",  # the new folder in it
        "tmp to block",
        f"flush {folder}",
        "flush tmp",
        "tmp to refs/a.json",
        "flush refs",
    ]
    steps.clear()
    monkeypatch.setattr(
        os, "unlink", lambda path: (steps.append(f"remove {place(path)}"), unlink(path))
    )
    store.remove("a")
    assert steps == ["remove refs/a.json", "flush refs", "remove block", f"flush {folder}"]


def test_creation_killed_at_any_moment_can_be_finished(tmp_path: Path) -> None:
    for step in range(1, 50):
        path = tmp_path / f"try {step}"

        def killed(path: Path = path, step: int = step) -> None:
            kill_at(step)
            Library(path)

        status = in_child(killed)
        with Library(path) as store:
            assert check_library(store, repair=True).sound
            store.put("a", header(), payload())
        if status == 0:
            assert step > 5
            return
    pytest.fail("the creation never came to its end")


def test_full_disk_stores_nothing_and_loses_nothing(store: Library) -> None:
    store.put("a", header(), payload())
    before = files(store)

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        mine = Library(store.path)
        for name, replace in (("big", False), ("a", True)):
            with pytest.raises(StoreFull, match="no space"):
                mine.put(name, header(), payload(1, 300_000), replace)
        assert files(mine) == before
        mine.put("small", header(), payload(2, 1000))

    assert in_child(full) == 0
    assert files(store).items() > before.items()
    assert names(store) == ["a", "small"]
    assert check_library(store).findings == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("call", ["pwritev", "fsync", "rename", "mkdir"])
def test_disk_that_fills_up_at_any_step_leaves_what_was_there(
    store: Library, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    store.put("a", header(), payload())
    before = files(store)
    real = getattr(os, call)
    n_failed = 0
    for failing in range(1, 20):
        count = 0

        def limited(*args: Any, failing: int = failing, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == failing:
                raise OSError(code, os.strerror(code))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, call, limited)
        full = False
        try:
            store.put("b", header(), payload(3, 30_000))
        except StoreFull:
            full = True
            n_failed += 1
        monkeypatch.undo()
        # The name may stand when only the very last flush failed; then it leads to a whole block.
        if not full or "refs/b.json" in files(store):
            assert read(store, "b") == payload(3, 30_000)
            store.remove("b")
        assert files(store) == before
        if count < failing:
            break
    else:
        pytest.fail("the operation never came to its end")
    assert n_failed >= 1
    assert check_library(store).findings == []


def test_two_writers_and_a_reader_at_once(tmp_path: Path) -> None:
    path = tmp_path / "library"
    store = Library(path)
    n_writers, n_each = 3, 8

    def writer(number: int) -> None:
        mine = Library(path)
        for i in range(n_each):
            mine.put(f"{number}-{i}", header(), payload(100 * number + i))
            mine.put("shared", header(), payload(100 * number + i), replace=True)
            if i % 3 == 2:
                mine.remove(f"{number}-{i - 1}")

    pids = []
    for number in range(n_writers):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                writer(number)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        pids.append(pid)
    statuses = []
    while pids:
        for line in store.list():
            assert line.problem in (None, "the block is missing"), line
        if "shared" in names(store):
            with store.open("shared") as block:
                block.verify()
        pid, status = os.waitpid(pids[0], os.WNOHANG)
        if pid:
            statuses.append(status)
            pids.pop(0)
    assert statuses == [0] * n_writers
    report = check_library(store)
    assert report.findings == []
    kept = {
        f"{n}-{i}" for n in range(n_writers) for i in range(n_each) if i % 3 != 1 or i + 1 >= n_each
    }
    assert set(names(store)) == kept | {"shared"}
    for name in kept:
        number, i = map(int, name.split("-"))
        assert read(store, name) == payload(100 * number + i)


def test_one_of_two_writers_of_a_name_wins(tmp_path: Path) -> None:
    path = tmp_path / "library"
    Library(path)
    ready, go = os.pipe()
    pids = []
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            os.read(ready, 1)
            try:
                Library(path).put("a", header(), payload(number))
                os._exit(0)
            except UsageError:
                os._exit(2)
            finally:
                os._exit(1)
        pids.append(pid)
    os.write(go, b"123")
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    os.close(ready)
    os.close(go)
    assert sorted(codes) == [0, 2, 2]
    store = Library(path)
    assert read(store, "a") == payload(codes.index(0))
    assert check_library(store).findings == []


def test_folder_that_may_not_be_read_is_a_clear_error(
    store: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", header(), payload())

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "blocks")

    monkeypatch.setattr(os, "scandir", refuse)
    for action in (store.list, lambda: check_library(store)):
        with pytest.raises(StoreFull, match="not permitted"):
            action()


def test_lock_that_another_process_keeps_is_an_error(store: Library) -> None:
    with store.locked():
        other = Library(store.path, lock_seconds=0.1)
        with pytest.raises(StoreLocked, match="another process"):
            other.put("a", header(), payload())
        assert other.list() == []
    store.put("a", header(), payload())


def test_r2_24_library_works_where_only_writable_descriptors_can_be_locked(
    store: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def strict(fd: int, operation: int) -> None:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", strict)
    store.put("a", header(), payload())
    with store.workspace() as folder:
        assert store.leftovers() == []
        assert folder.exists()
    assert check_library(store).findings == []


def test_r2_24_library_without_locks_can_be_read_and_says_why_it_cannot_be_written(
    store: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", header(), payload())
    before = files(store)

    def refuse(_fd: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    other = Library(store.path)
    assert read(other, "a") == payload()
    assert names(other) == ["a"]
    for write in (
        lambda: other.put("b", header(), payload(1)),
        lambda: other.remove("a"),
        lambda: other.gc(0),
    ):
        with pytest.raises(StoreFull, match="no locks") as caught:
            write()
        assert caught.value.where == store.path / "lock"
    assert files(store) == before


def test_writing_a_large_block_keeps_nobody_waiting(
    store: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Library(store.path, lock_seconds=0.1)
    real = blockfile.write

    def slow(fd: int, block_header: BlockHeader, content: Any) -> str:
        monkeypatch.setattr(blockfile, "write", real)
        other.put("quick", header(), payload(1))
        return real(fd, block_header, content)

    monkeypatch.setattr(blockfile, "write", slow)
    store.put("slow", header(), payload(2))
    assert names(store) == ["quick", "slow"]
