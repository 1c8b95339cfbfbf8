"""The folder of pieces as its owner sees it: chains, pins, eviction, checks, and moving pieces."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from taliesin.errors import FormatError, StoreDamaged, StoreMissing, UsageError
from taliesin.store.piecefolder import PieceFolder
from taliesin.store.pieces import PieceStore
from tests.taliesin.store.test_pieces import RECIPE, SIZE, chain

Pieces = list[tuple[str, str, list[int], bytes]]


def stored(folder: Path, *chains: Pieces) -> PieceFolder:
    """A folder that holds these chains, the last one used last."""
    with PieceStore(folder, RECIPE, budget_bytes=1 << 30) as store:
        for made in chains:
            for piece in made:
                store.put(*piece)
            store.flush()
    at = 1e9
    for made in chains:
        for name, *_ in reversed(made):
            at += 1
            os.utime(store.files.path(name), (at, at))
    return PieceFolder(folder)


def trunk(folder: Path) -> tuple[PieceFolder, Pieces, Pieces, Pieces]:
    """Two chains that share three pieces, and one of its own."""
    first = chain(5, 1)
    branch = chain(2, 2, start=first[2][0])
    other = chain(4, 3)
    return stored(folder, other, first, first[:3] + branch), first, branch, other


def test_chains_are_listed_with_what_they_share(tmp_path: Path) -> None:
    folder, first, branch, other = trunk(tmp_path / "p")
    found = {c.leaf: c for c in folder.chains()}
    assert set(found) == {first[4][0], branch[1][0], other[3][0]}
    assert [c.leaf for c in folder.chains()][-1] == other[3][0]
    one = found[branch[1][0]]
    assert one.names == tuple(name for name, *_ in first[:3] + branch)
    assert (one.n_tokens, one.shared, one.recipe, one.pinned) == (20, 3, RECIPE, False)
    ids = folder.trees().ids(one.leaf).tolist()
    assert ids == [i for _, _, own, _ in first[:3] + branch for i in own]


def test_a_chain_is_found_by_its_first_digits(tmp_path: Path) -> None:
    folder, first, _, _ = trunk(tmp_path / "p")
    assert folder.chain(first[4][0][:8]).leaf == first[4][0]
    with pytest.raises(StoreMissing, match="no such chain"):
        folder.chain(first[1][0])  # something follows it
    with pytest.raises(UsageError, match="not a chain's name"):
        folder.chain("abc")


def test_an_absent_folder_is_an_empty_one_and_is_not_made(tmp_path: Path) -> None:
    folder = PieceFolder(tmp_path / "none")
    assert (folder.chains(), folder.held(), folder.pins()) == ([], [], frozenset())
    assert not (tmp_path / "none").exists()


def test_what_is_pinned_and_all_before_it_stays(tmp_path: Path) -> None:
    folder, first, branch, other = trunk(tmp_path / "p")
    folder.pin(other[3][0], True)  # the least recently used one
    removed, n_bytes, left = folder.evict(5 * (SIZE + 400), dry_run=True)
    assert len(folder.held()) == 11
    assert folder.evict(5 * (SIZE + 400)) == (removed, n_bytes, left)
    names = {held.name for held in folder.held()}
    assert names >= {name for name, *_ in other}
    for name, parent, *_ in (*first, *branch, *other):
        assert name not in names or not parent or parent in names
    assert folder.evict(0)[2] > 0  # the pinned chain is larger
    assert {held.name for held in folder.held()} == {name for name, *_ in other}
    folder.pin(other[3][0], False)
    folder.evict(0)
    assert folder.held() == []


def test_a_store_over_its_budget_leaves_pins_alone(tmp_path: Path) -> None:
    folder, _, _, other = trunk(tmp_path / "p")
    folder.pin(other[3][0], True)
    with PieceStore(tmp_path / "p", RECIPE, budget_bytes=8 * (SIZE + 400)) as store:
        for piece in chain(4, 9):
            store.put(*piece)
        store.flush()
        assert store.evicted
        assert all(store.holds(name) for name, *_ in other)


def test_a_check_names_what_is_damaged_and_what_lost_its_ancestor(tmp_path: Path) -> None:
    folder, first, branch, other = trunk(tmp_path / "p")
    assert folder.check()[2:] == ({}, [])
    path = folder.path(other[3][0])
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    folder.path(first[1][0]).unlink()
    found = folder.check()
    assert list(found.damaged) == [other[3][0]]
    assert set(found.orphans) == {name for name, *_ in first[2:] + branch}
    assert {c.leaf for c in folder.chains()} == {first[0][0], other[3][0]}
    assert folder.remove([*found.damaged, *found.orphans]) == 6
    assert folder.check()[2:] == ({}, [])


def test_a_header_that_cannot_be_read_is_no_chain(tmp_path: Path) -> None:
    folder, _, _, other = trunk(tmp_path / "p")
    folder.path(other[3][0]).write_bytes(b"something else")
    trees = folder.trees()
    assert list(trees.unusable) == [other[3][0]]
    assert other[2][0] in {c.leaf for c in folder.chains(trees)}


def test_chains_move_to_another_folder_byte_for_byte(tmp_path: Path) -> None:
    folder, first, branch, _ = trunk(tmp_path / "p")
    out = tmp_path / "warm.tar"
    leaves = [folder.chain(first[4][0]), folder.chain(branch[1][0])]
    assert folder.export(leaves, out) == 7
    there = PieceFolder(tmp_path / "q")
    assert there.take_in(out) == (7, 0)
    assert there.take_in(out) == (0, 7)
    assert {c.names for c in there.chains()} == {c.names for c in leaves}
    for name, *_ in first + branch:
        assert there.path(name).read_bytes() == folder.path(name).read_bytes()
    assert list((tmp_path / "q" / "drafts").iterdir()) == []


def test_a_damaged_or_foreign_file_is_refused_and_leaves_nothing_unread(tmp_path: Path) -> None:
    folder, first, _, _ = trunk(tmp_path / "p")
    out = tmp_path / "warm.tar"
    folder.export([folder.chain(first[4][0])], out)
    there = PieceFolder(tmp_path / "q")
    data = bytearray(out.read_bytes())
    at = data.find(first[2][3])
    data[at] ^= 1
    (tmp_path / "bad.tar").write_bytes(data)
    with pytest.raises(StoreDamaged, match="payload"):
        there.take_in(tmp_path / "bad.tar")
    assert len(there.held()) == 2
    (tmp_path / "text").write_text("no tar")
    with pytest.raises(FormatError, match="not a file of pieces"):
        there.take_in(tmp_path / "text")
    with pytest.raises(StoreMissing):
        there.take_in(tmp_path / "none")
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("../x.piece"), io.BytesIO())
    with pytest.raises(FormatError, match="members named"):
        there.take_in(tmp_path / "evil.tar")


def test_a_file_without_the_first_pieces_is_refused(tmp_path: Path) -> None:
    folder, first, _, _ = trunk(tmp_path / "p")
    with tarfile.open(tmp_path / "cut.tar", "w") as tar:
        tar.add(folder.path(first[1][0]), first[1][0] + ".piece")
    with pytest.raises(FormatError, match="follows one that is not there"):
        PieceFolder(tmp_path / "q").take_in(tmp_path / "cut.tar")
