"""Writers that are killed for real, in forked processes; full disks; several at once; disks
without locks."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taliesin.errors import (
    StoreFull,
    StoreLocked,
    StoreMissing,
    UsageError,
)
from taliesin.store import blockfile
from taliesin.store.blockfile import BlockFile
from taliesin.store.check import check as check_library
from taliesin.store.header import BlockHeader
from taliesin.store.library import Library
from tests.taliesin.store.blocks import (
    GOLDEN,
    files,
    header,
    names,
    payload,
    read,
)

pytestmark = pytest.mark.usefixtures("no_fsync")


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
