"""The one lock between processes: a file that one process at a time holds.

Promises: the kernel drops a lock with its process, so that a killed one leaves nothing to clear;
the lock file stays where it is, whatever is in it; a file system without locks (ENOLCK, EBADF and
their kind, as on some network disks) is one error that names the file.
Deliberately does not know: what is guarded.

Outside of this module stand `scripts/bootstrap.py`, which runs before anything is installed, and
the sandbox, whose processes see no library of ours.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from taliesin.errors import StoreFull, StoreLocked, ToolkitError

if TYPE_CHECKING:
    from filelock import FileLock

# What file systems say that have no locks, or lost their lock server.
_NO_LOCKS = frozenset(
    (errno.ENOLCK, errno.EBADF, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
)


class Lock:
    """A lock on the file at `path`, which is made if it is not there. Whoever holds it through one
    object may take it through that object again; two objects exclude each other, also within one
    process. One object is for one thread.
    """

    def __init__(
        self,
        path: Path,
        *,
        seconds: float | None,
        busy: str,
        hint: str | None = None,
        error: type[ToolkitError] = StoreLocked,
    ) -> None:
        """seconds: how long to wait for another holder, None for ever; busy, hint: the message of
        the `error` when it took longer.
        """
        self.path = path
        self._seconds = -1.0 if seconds is None else seconds
        self._busy = busy
        self._hint = hint
        self._error = error
        self._lock: FileLock | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            StoreLocked, or the `error` given: another kept it for too long.
            StoreFull: the file cannot be made or opened, or the file system has no locks.
        """
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def acquire(self) -> None:
        """Take the lock, to be given back by `release`. Raises as `held`."""
        # Not at the top: a listing takes no lock.
        from filelock import FileLock, Timeout

        if self._lock is None:
            self._lock = FileLock(
                self.path, timeout=self._seconds, mode=0o600, fallback_to_soft=False
            )
        try:
            self._lock.acquire()
        except Timeout as error:
            raise self._error(self._busy, where=self.path, hint=self._hint) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise StoreFull(
                    "not permitted, or no space: the lock cannot be taken",
                    got=error.strerror,
                    where=self.path,
                ) from error
            raise StoreFull(
                "the file system has no locks",
                expected="one where flock works",
                got=error.strerror,
                where=self.path,
                hint="choose a folder on a local disk, or mount this one with locks",
            ) from error

    def release(self) -> None:
        """Give the lock back, as often as it was taken."""
        if self._lock is not None:
            self._lock.release()


@contextmanager
def held(
    path: Path,
    *,
    seconds: float | None = 0.0,
    busy: str,
    hint: str | None = None,
    error: type[ToolkitError] = StoreLocked,
    waiting: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Hold a lock on the file at `path` for once. Parameters and errors as of `Lock`.

    waiting: called when another holds the lock, before it is waited for.
    """
    if waiting is not None and is_held(path):
        waiting()
    with Lock(path, seconds=seconds, busy=busy, hint=hint, error=error).held():
        yield


def is_held(path: Path) -> bool:
    """Whether a process holds a lock on the file at `path` now. False where there is no such file,
    and where nobody could say, because the file system has no locks.
    """
    import fcntl

    fd = -1
    for flags in (os.O_RDWR, os.O_RDONLY):  # NFS locks only what is open for writing
        with suppress(OSError):
            fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            break
    if fd < 0:
        return False
    try:
        # Shared: two that ask at once do not take each other for a holder.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _NO_LOCKS
    finally:
        os.close(fd)
    return False
