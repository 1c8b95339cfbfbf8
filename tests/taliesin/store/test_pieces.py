"""The folder of pieces: written behind the answer, found by the next process, evicted leaves
first, and never an error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from taliesin.errors import StoreFull
from taliesin.store import piecefile
from taliesin.store.pieces import PieceStore

RECIPE = "ab" * 32
SIZE = 1000


def chain(n: int, seed: int, start: str = "") -> list[tuple[str, str, list[int], bytes]]:
    """(name, parent, ids, payload) of `n` pieces that follow each other."""
    rng = np.random.default_rng(seed)
    found = []
    parent = start
    for _ in range(n):
        ids = rng.integers(0, 1000, 4).tolist()
        name = piecefile.following(parent or RECIPE, np.asarray(ids, np.int32))
        found.append((name, parent, ids, rng.bytes(SIZE)))
        parent = name
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PieceStore]:
    with PieceStore(tmp_path / "p", RECIPE, budget_bytes=1 << 30) as store:
        yield store


def test_what_was_put_is_there_at_once_and_for_the_next_process(
    store: PieceStore, tmp_path: Path
) -> None:
    made = chain(5, 1)
    for piece in made:
        store.put(*piece)
        assert store.holds(piece[0])
        assert store.read(piece[0]) == piece[3]
    store.flush()
    assert not list((tmp_path / "p" / "drafts").iterdir())
    with PieceStore(tmp_path / "p", RECIPE, budget_bytes=1 << 30) as other:
        assert [other.read(name) for name, *_ in made] == [payload for *_, payload in made]
        assert len(other.files.held()) == 5


def test_a_piece_without_its_predecessor_is_left_out(store: PieceStore) -> None:
    made = chain(3, 2)
    store.put(*made[2])
    store.flush()
    assert (store.left_out, store.holds(made[2][0])) == (1, False)


def test_a_damaged_file_is_a_miss_and_goes(store: PieceStore) -> None:
    ((name, parent, ids, payload),) = chain(1, 3)
    store.put(name, parent, ids, payload)
    store.flush()
    path = store.files.path(name)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert store.read(name) is None
    assert not store.holds(name)
    store.put(name, parent, ids, payload)  # and can be had again
    assert store.read(name) == payload


def test_over_the_budget_the_oldest_leaves_go_first(tmp_path: Path) -> None:
    with PieceStore(tmp_path / "p", RECIPE, budget_bytes=12 * (SIZE + 400)) as store:
        first, second = chain(6, 4), chain(6, 5)
        for made in (first, second):
            for piece in made:
                store.put(*piece)
            store.flush()
            store.used([name for name, *_ in made])
        branch = chain(4, 6, start=first[2][0])
        store.used([name for name, *_ in first[:3]])
        for piece in branch:
            store.put(*piece)
            store.flush()
            names = {held.name for held in store.files.held()}
            for name, parent, *_ in (*first, *second, *branch):
                assert name not in names or not parent or parent in names
        assert store.evicted
        assert sum(held.n_bytes for held in store.files.held()) <= store.budget_bytes
        assert all(store.holds(name) for name, *_ in first[:3])  # used last
        assert not store.holds(first[5][0])


def test_a_day_has_a_budget(tmp_path: Path) -> None:
    with PieceStore(tmp_path / "p", RECIPE, budget_bytes=1 << 30, day_bytes=2500) as store:
        for piece in chain(4, 7):
            store.put(*piece)
        store.flush()
        assert (len(store.files.held()), store.left_out) == (2, 2)


def test_a_disk_that_fails_is_said_once_and_answers_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with PieceStore(tmp_path / "p", RECIPE, budget_bytes=1 << 30) as store:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(store, "_write", full)
        for piece in chain(3, 8):
            store.put(*piece)
        store.flush()
        assert store.files.held() == []
        assert len([r for r in caplog.records if "no more pieces" in r.message]) == 1


def test_a_killed_writer_leaves_whole_pieces(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.taliesin.store.test_pieces import chain, RECIPE\n"
        "from taliesin.store.pieces import PieceStore\n"
        "store = PieceStore(Path(sys.argv[1]), RECIPE, budget_bytes=1 << 30)\n"
        "print('on', flush=True)\n"
        "for seed in range(100000):\n"
        "    for piece in chain(5, seed): store.put(*piece)\n"
    )
    folder = tmp_path / "p"
    for round_ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.1 * (round_ + 1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    for draft in (folder / "drafts").iterdir():
        os.utime(draft, (0, 0))
    with PieceStore(folder, RECIPE, budget_bytes=1 << 30) as store:
        assert not list((folder / "drafts").iterdir())
        listed = store.files.held()
        assert listed
        assert all(store.read(held.name) is not None for held in listed)


def test_a_file_of_a_later_version_is_a_miss_and_stays(store: PieceStore) -> None:
    ((name, parent, ids, payload),) = chain(1, 9)
    store.put(name, parent, ids, payload)
    store.flush()
    path = store.files.path(name)
    data = bytearray(path.read_bytes())
    data[8] = 2
    path.write_bytes(data)
    assert store.read(name) is None
    assert path.exists()


def test_the_folder_is_for_the_owner_and_must_be_one(tmp_path: Path) -> None:
    with PieceStore(tmp_path / "p", RECIPE, budget_bytes=1) as store:
        assert store.folder.stat().st_mode & 0o77 == 0
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFull, match="cannot be made"):
        PieceStore(tmp_path / "file" / "p", RECIPE, budget_bytes=1)


def test_a_piece_is_never_older_than_what_follows_it(store: PieceStore) -> None:
    made = chain(8, 10)
    names = [name for name, *_ in made]
    for piece in made[:4]:
        store.put(*piece)
    store.flush()
    store.used(names[:4])
    for piece in made[4:]:
        store.put(*piece)
    store.used(names)  # some of them still wait
    store.flush()
    times = [store.files.path(name).stat().st_mtime_ns for name in names]
    assert times == sorted(times, reverse=True)
