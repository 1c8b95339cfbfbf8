"""The walk over every file, with damage put there."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from pathlib import Path

import filelock
import pytest

from taliesin.errors import StoreDamaged, StoreFull
from taliesin.store import listing, trust
from taliesin.store.blockfile import BlockFile
from taliesin.store.check import check as check_library
from taliesin.store.library import Library
from tests.taliesin.store.blocks import (
    GOLDEN,
    TRAILER,
    damage,
    files,
    header,
    kinds,
    names,
    payload,
    read,
)

pytestmark = pytest.mark.usefixtures("no_fsync")


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


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOLCK])
def test_library_that_cannot_be_written_is_checked_all_the_same(
    store: Library, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    info = store.put("a", header(), payload())
    damage(store.block_path(info.id))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    other = Library(store.path)
    assert kinds(other) == [("damaged-block", False)]
    with pytest.raises(StoreFull):
        check_library(other, repair=True)
