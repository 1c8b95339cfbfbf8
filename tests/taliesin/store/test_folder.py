"""The folder of a library: made, recognised, never taken over, no link followed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from taliesin.errors import (
    FormatError,
    StoreDamaged,
    StoreMissing,
    UnsupportedVersion,
)
from taliesin.store import library
from taliesin.store.library import Library
from tests.taliesin.store.blocks import (
    header,
    payload,
)

pytestmark = pytest.mark.usefixtures("no_fsync")


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
