"""Files that are there whole or not at all, whatever kills the writer.

Promises: a reader of `path` sees what was there before or the new content, and what was there at
the end stays after a power cut;
readable by the owner only unless said otherwise. Deliberately does not know: what is in the files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from taliesin.errors import StoreFull, UsageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# of the target's name in the draft's: the two names together must not be too long for a file
_NAME_CHARS = 100


@contextmanager
def replacing(path: Path, *, draft: Path | None = None, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` where the block ends, and is gone where it raises.

    draft: where the file lies until then, on the same file system; beside `path` if not given.

    Raises:
        OSError: from the file system, or `path` is a device, a FIFO or a socket, in whose place a
            file may not come; `path` is as it was, unless only the last flush of its folder failed.
    """
    _require_replaceable(path)
    if draft is None:
        draft = path.with_name(f".{path.name[:_NAME_CHARS]}.{os.urandom(6).hex()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _require_replaceable(path: Path) -> None:
    """Refuse what is no file: `--out /dev/null` of a root user would take the device away from
    everybody else.
    """
    if not path.name:  # `.` and `/`, beside which no draft can be named
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except OSError:
        return  # not there, a link to nothing, or not permitted, which the write will say
    if kind not in (stat.S_IFREG, stat.S_IFDIR):  # a folder is refused by the rename
        raise OSError(errno.EINVAL, "Not a regular file", str(path))


def write(path: Path, content: ReadableBuffer, *, draft: Path | None = None) -> None:
    """Put `content` at `path`. Raises as `replacing`."""
    with replacing(path, draft=draft) as file:
        file.write(content)


def write_output(
    path: Path, text: str, *, mode: int = 0o600, errors: str = "surrogatepass"
) -> None:
    """Put `text` at a path that the user named, as UTF-8; `errors` as of `str.encode`.

    Raises:
        UsageError: its folder is missing. StoreFull: no space, or not permitted.
    """
    try:
        with replacing(path, mode=mode) as file:
            file.write(text.encode("utf-8", errors))
    except FileNotFoundError as error:
        raise UsageError("the folder is missing", where=path.parent) from error
    except OSError as error:
        raise StoreFull("the file cannot be written", got=error.strerror, where=path) from error


def require_output(path: Path) -> None:
    """Find out whether `write_output` can write there, before the work whose result it is. Raises
    as it does.
    """
    try:
        _require_replaceable(path)
        draft = path.with_name(f".{os.urandom(6).hex()}")
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        draft.unlink()
    except FileNotFoundError as error:
        raise UsageError("the folder is missing", where=path.parent) from error
    except OSError as error:
        raise StoreFull("the file cannot be written", got=error.strerror, where=path) from error


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
