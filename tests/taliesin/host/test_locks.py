"""The lock between processes, held by real ones; file systems without locks are played."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from taliesin.errors import StoreFull, StoreLocked, UsageError
from taliesin.host import locks
from taliesin.host.locks import Lock, is_held


def locked_elsewhere(path: Path) -> Callable[[], None]:
    """A process that holds the lock; what comes back kills it."""
    ready, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        with locks.held(path, busy="?"):
            os.write(say, b"1")
            signal.pause()
        os._exit(0)
    os.read(ready, 1)

    def kill() -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(say)

    return kill


def test_lock_of_another_process_is_one_error_and_goes_with_that_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    kill = locked_elsewhere(path)
    try:
        assert is_held(path)
        with (
            pytest.raises(StoreLocked, match="somebody else") as caught,
            locks.held(path, busy="somebody else", hint="wait"),
        ):
            pass
        assert (caught.value.where, caught.value.hint) == (path, "wait")
    finally:
        kill()
    assert not is_held(path)
    with locks.held(path, busy="somebody else"):
        assert is_held(path)


def test_holder_may_take_its_lock_again_and_another_object_may_not(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine, other = (Lock(path, seconds=0.05, busy="busy", error=UsageError) for _ in range(2))
    with mine.held():
        with mine.held():
            pass
        with pytest.raises(UsageError, match="busy"), other.held():
            pass
    with other.held():
        pass


def test_waiting_is_told_only_where_one_waits(tmp_path: Path) -> None:
    told: list[str] = []
    path = tmp_path / "lock"
    with locks.held(path, seconds=None, busy="?", waiting=lambda: told.append("waiting")):
        assert told == []
        with (
            pytest.raises(StoreLocked),
            locks.held(path, busy="?", waiting=lambda: told.append("waiting")),
        ):
            pass
    assert told == ["waiting"]


def test_content_of_a_locked_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a line\n")
    with locks.held(path, busy="?"):
        pass
    assert path.read_text() == "a line\n"


def test_nothing_holds_what_is_not_there(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP])
def test_r2_24_file_system_without_locks_is_one_error_with_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(_fd: int, _operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreFull, match="no locks") as caught, locks.held(tmp_path / "l", busy="?"):
        pass
    assert caught.value.where == tmp_path / "l"
    assert not is_held(tmp_path / "l")


def test_r2_24_file_system_that_locks_only_writable_descriptors_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def strict(fd: int, operation: int) -> None:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", strict)
    with locks.held(tmp_path / "lock", busy="?"):
        assert is_held(tmp_path / "lock")
    assert not is_held(tmp_path / "lock")
