"""One block file: header and payload to bytes and back (docs/format.md, "Block file").

Promises that a file that opens has a header that obeys every rule of the format, and that a
verified read gives the
bytes that were written. Deliberately does not know: what the header says (`blockheader`), names and
folders (`library`), what the payload says (`seqstate`).
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from taliesin.errors import FormatError, StoreDamaged, StoreMissing, UnsupportedVersion
from taliesin.host.canonical import is_digest
from taliesin.store import header as blockheader
from taliesin.store.header import BlockHeader

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAGIC = b"\x89KVB\r\n\x1a\n"
VERSION = 1
SUFFIX = ".kvb"
CHUNK_BYTES = 1 << 20

_ALIGNMENT = 4096
_MAX_META_BYTES = 1 << 20
_MAX_TOKENS = 1 << 24
_MAX_TAIL = 1 << 20
_MAX_TEXT_BYTES = 1 << 28
_MAX_CHUNKS = 1 << 20
_MIN_CHUNK_BYTES = 1 << 12
_MAX_CHUNK_BYTES = 1 << 26
_MAX_PAYLOAD_BYTES = 1 << 44

# up to the preamble digest, which is that of exactly these bytes
_FIELDS = struct.Struct("<8sII8Q32s")
PREAMBLE_BYTES = _FIELDS.size + 32
_DIGEST_BYTES = 32
_READ_BYTES = 8 << 20  # what one thread reads at once where nothing is hashed
# preadv takes at most IOV_MAX vectors; POSIX systems in use have 1024.
_IOV_MAX = 1024

# Files that people pass by mistake, by their first bytes.
_OTHER_MAGICS = {
    b"GGUF": "a GGUF model file",
    b"qsgg": "a llama.cpp sequence state file (a slot saved by llama-server)",
    b"GGSQ": "a llama.cpp sequence state file (a slot saved by llama-server)",
    b"nsgg": "a llama.cpp session file",
    b"GGSN": "a llama.cpp session file",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "a gzip file",
}


class Layout(NamedTuple):
    """Sizes and places in one block file, in bytes from its start; checked against each other by
    `_layout_of`.
    """

    meta_bytes: int
    n_tokens: int
    n_tail: int
    text_bytes: int
    n_chunks: int
    chunk_bytes: int
    payload_offset: int
    payload_bytes: int

    @property
    def tokens_offset(self) -> int:
        return PREAMBLE_BYTES + self.meta_bytes

    @property
    def tail_offset(self) -> int:
        return self.tokens_offset + 4 * self.n_tokens

    @property
    def text_offset(self) -> int:
        return self.tail_offset + 4 * self.n_tail

    @property
    def text_end(self) -> int:
        return self.text_offset + self.text_bytes

    @property
    def table_offset(self) -> int:
        return self.payload_offset + self.payload_bytes

    @property
    def file_bytes(self) -> int:
        return self.table_offset + _DIGEST_BYTES * (self.n_chunks + 1)


class Identity(NamedTuple):
    """What tells one file on this machine from another, and from itself after a change."""

    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def stamp(self) -> str:
        return ":".join(map(str, self))


def identity_of(status: os.stat_result) -> Identity:
    return Identity(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


# -- preamble and header ---------------------------------------------------------------------------


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _refuse_other_file(start: bytes, file_bytes: int, where: object) -> None:
    """Raise FormatError, naming what the file is, unless `start` begins like a block file of some
    version.
    """
    if file_bytes == 0:
        raise FormatError(
            "an empty file (0 bytes) is not a block",
            where=where,
            hint="the program that wrote it did not finish",
        )
    if start.startswith(MAGIC):
        if file_bytes < PREAMBLE_BYTES:
            raise StoreDamaged(
                "block file is cut short",
                expected=f"at least {PREAMBLE_BYTES} bytes",
                got=file_bytes,
                where=where,
            )
        return
    if start.startswith(MAGIC[:4]):
        raise StoreDamaged(
            "block file's magic is damaged",
            where=where,
            hint="was it copied as text, not as binary?",
        )
    for magic, name in _OTHER_MAGICS.items():
        if start.startswith(magic):
            raise FormatError(f"this is {name}, not a block", where=where)
    if start[257:262] == b"ustar":
        raise FormatError(
            "this is a tar file, not a block",
            where=where,
            hint="taliesin import FILE reads bundles",
        )
    raise FormatError(
        "not a block file", expected=f"first bytes {MAGIC!r}", got=repr(start[:8]), where=where
    )


def _layout_of(preamble: bytes, file_bytes: int, where: object) -> Layout:
    """The geometry that the preamble gives, checked against itself and the file's size; allocates
    nothing for it.

    Raises:
        FormatError, UnsupportedVersion, StoreDamaged: see docs/format.md, "Failures".
    """
    _magic, version, flags, *numbers, _header_digest = _FIELDS.unpack(preamble[: _FIELDS.size])
    if version > VERSION:
        raise UnsupportedVersion(
            f"block file of version {version}; this program reads version {VERSION}",
            expected=VERSION,
            got=version,
            where=where,
            hint="read it with the newer program that wrote it, or save the text again",
        )
    if hashlib.sha256(preamble[: _FIELDS.size]).digest() != preamble[_FIELDS.size :]:
        raise StoreDamaged(
            "block file's first bytes are damaged (preamble digest differs)", where=where
        )
    if version == 0:
        raise FormatError("block file of version 0, which never existed", where=where)
    if flags != 0:
        raise FormatError(
            "block file has flags that version 1 does not define",
            expected=0,
            got=flags,
            where=where,
        )
    layout = Layout(*numbers)

    def in_range(name: str, low: int, high: int) -> None:
        value = getattr(layout, name)
        if not low <= value <= high:
            raise FormatError(
                f"field {name} is out of range", expected=f"{low} to {high}", got=value, where=where
            )

    in_range("meta_bytes", 2, _MAX_META_BYTES)
    in_range("n_tokens", 1, _MAX_TOKENS)
    in_range("n_tail", 0, _MAX_TAIL)
    in_range("text_bytes", 0, _MAX_TEXT_BYTES)
    in_range("n_chunks", 1, _MAX_CHUNKS)
    in_range("chunk_bytes", _MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES)
    in_range("payload_bytes", 1, _MAX_PAYLOAD_BYTES)
    if layout.chunk_bytes & (layout.chunk_bytes - 1):
        raise FormatError(
            "field chunk_bytes is not a power of two", got=layout.chunk_bytes, where=where
        )
    n_chunks = -(-layout.payload_bytes // layout.chunk_bytes)
    if layout.n_chunks != n_chunks:
        raise FormatError(
            "field n_chunks does not fit the payload",
            expected=n_chunks,
            got=layout.n_chunks,
            where=where,
        )
    offset = _round_up(layout.text_end, _ALIGNMENT)
    if layout.payload_offset != offset:
        raise FormatError(
            "field payload_offset does not follow the header",
            expected=offset,
            got=layout.payload_offset,
            where=where,
        )
    if layout.file_bytes != file_bytes:
        problem = "is cut short" if file_bytes < layout.file_bytes else "has bytes after its end"
        raise StoreDamaged(
            f"block file {problem}", expected=layout.file_bytes, got=file_bytes, where=where
        )
    return layout


def _decode_header(preamble: bytes, region: bytes, layout: Layout, where: object) -> BlockHeader:
    """The header that the bytes [144, payload_offset) hold."""
    if hashlib.sha256(region).digest() != preamble[_FIELDS.size - _DIGEST_BYTES : _FIELDS.size]:
        raise StoreDamaged("block file's header is damaged (its digest differs)", where=where)

    def span(start: int, end: int) -> bytes:
        return region[start - PREAMBLE_BYTES : end - PREAMBLE_BYTES]

    ends = (
        PREAMBLE_BYTES,
        layout.tokens_offset,
        layout.tail_offset,
        layout.text_offset,
        layout.text_end,
    )
    header = blockheader.decode(blockheader.Encoded(*map(span, ends, ends[1:])), where)
    if any(span(layout.text_end, layout.payload_offset)):
        raise FormatError("padding before the payload is not zero", where=where)
    return header


class _Frame(NamedTuple):
    """Everything of a block file but the payload. table: n_chunks digests of 32 bytes."""

    header: BlockHeader
    layout: Layout
    table: bytes
    root: bytes


def _read_frame(fd: int, file_bytes: int, where: object) -> _Frame:
    """The frame of an open file, every rule checked; reads no payload."""
    start = os.pread(fd, 512, 0)
    _refuse_other_file(start, file_bytes, where)
    preamble = start[:PREAMBLE_BYTES]
    layout = _layout_of(preamble, file_bytes, where)
    table = _pread_exactly(fd, _DIGEST_BYTES * layout.n_chunks, layout.table_offset, where)
    root = _pread_exactly(fd, _DIGEST_BYTES, layout.file_bytes - _DIGEST_BYTES, where)
    if root != _root_of(preamble, table):
        raise StoreDamaged("block file's last bytes are damaged (root digest differs)", where=where)
    region = _pread_exactly(fd, layout.payload_offset - PREAMBLE_BYTES, PREAMBLE_BYTES, where)
    return _Frame(_decode_header(preamble, region, layout, where), layout, table, root)


def _root_of(preamble: bytes, table: bytes) -> bytes:
    return hashlib.sha256(preamble[_FIELDS.size :] + table).digest()


def _pread_exactly(fd: int, size: int, offset: int, where: object) -> bytes:
    data = os.pread(fd, size, offset)
    while len(data) < size:
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            raise StoreDamaged("block file became shorter while it was read", where=where)
        data += more
    return data


# -- pieces of memory ------------------------------------------------------------------------------


def _byte_view(buffer: ReadableBuffer) -> memoryview:
    return memoryview(buffer).cast("B")


def _cut(views: Sequence[memoryview], piece_bytes: int) -> Iterator[list[memoryview]]:
    """The concatenation of `views`, cut every `piece_bytes` without a copy."""
    piece: list[memoryview] = []
    room = piece_bytes
    for view in views:
        rest = view
        while len(rest) >= room:
            piece.append(rest[:room])
            rest = rest[room:]
            yield piece
            piece, room = [], piece_bytes
        if len(rest):
            piece.append(rest)
            room -= len(rest)
    if piece:
        yield piece


def _digest(views: Sequence[memoryview]) -> bytes:
    sha = hashlib.sha256()
    for view in views:
        sha.update(view)
    return sha.digest()


def _transfer(
    operation: Callable[[int, Sequence[memoryview], int], int],
    fd: int,
    views: Sequence[memoryview],
    offset: int,
) -> int:
    """Run `os.preadv` or `os.pwritev` until all of `views` is done or the file ends. Gives back the
    bytes done.
    """
    done = first = 0
    rest = list(views)
    while first < len(rest):
        n = operation(fd, rest[first : first + _IOV_MAX], offset + done)
        if n == 0:
            break
        done += n
        while first < len(rest) and n >= len(rest[first]):
            n -= len(rest[first])
            first += 1
        if n:
            rest[first] = rest[first][n:]
    return done


def _in_threads(tasks: Sequence[Callable[[], None]], threads: int) -> None:
    """Run all tasks, at most `threads` at a time; of their exceptions the first in the order of
    `tasks` comes out.
    """
    # Not at the top: a listing reads no block and need not load the thread pool (30 ms).
    from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

    if threads <= 1 or len(tasks) == 1:
        for task in tasks:
            task()
        return
    pool = ThreadPoolExecutor(min(threads, len(tasks)))
    try:
        futures = [pool.submit(task) for task in tasks]
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:
        # After a failure, or Ctrl-C, what has not begun is dropped; what runs ends before the
        # caller's memory may go.
        pool.shutdown(cancel_futures=True)
    for future in futures:
        if not future.cancelled():
            future.result()


# -- writing ---------------------------------------------------------------------------------------


def write(
    fd: int,
    header: BlockHeader,
    payload: ReadableBuffer | Sequence[ReadableBuffer],
    *,
    chunk_bytes: int = CHUNK_BYTES,
    threads: int = 2,
) -> str:
    """Write a block into the empty file `fd` (opened for reading and writing), fsync it, and give
    back its id.

    The payload is hashed by chunks and for the id while it goes to the disk; the header, without
    which the file is no block, is written last. It is read back and decoded before this returns.

    Raises:
        FormatError: header or payload breaks a rule of the format (no tokens, no payload, ...);
        nothing was written.
        OSError: from the file system, such as ENOSPC.
    """
    from concurrent.futures import ThreadPoolExecutor

    buffers: Sequence[ReadableBuffer] = payload if isinstance(payload, (list, tuple)) else [payload]  # type: ignore[list-item]
    views = [_byte_view(b) for b in buffers if memoryview(b).nbytes]
    meta, tokens, tail, text = blockheader.encode(header)
    payload_bytes = sum(map(len, views))
    if payload_bytes == 0:
        raise FormatError(
            "a block without state is not stored", expected="a payload", got="0 bytes"
        )
    n_chunks = -(-payload_bytes // chunk_bytes)
    text_end = PREAMBLE_BYTES + len(meta) + len(tokens) + len(tail) + len(text)
    payload_offset = _round_up(text_end, _ALIGNMENT)
    layout = Layout(
        len(meta),
        len(tokens) // 4,
        len(tail) // 4,
        len(text),
        n_chunks,
        chunk_bytes,
        payload_offset,
        payload_bytes,
    )
    region = meta + tokens + tail + text + bytes(payload_offset - text_end)
    preamble = _encode_preamble(layout, hashlib.sha256(region).digest())
    _layout_of(preamble, layout.file_bytes, None)  # the rules of reading, before a byte is written

    start = [memoryview(preamble), memoryview(region)]
    file_hash = hashlib.sha256()
    digests = [b""] * n_chunks

    def hash_file() -> None:
        for view in [*start, *views]:
            file_hash.update(view)

    def hash_chunk(index: int, piece: list[memoryview]) -> Callable[[], None]:
        def task() -> None:
            digests[index] = _digest(piece)

        return task

    def write_payload() -> None:
        _write_all(fd, views, payload_offset)
        os.fsync(fd)

    with ThreadPoolExecutor(2) as pool:
        at_once = [pool.submit(write_payload), pool.submit(hash_file)]
        _in_threads(
            [hash_chunk(i, piece) for i, piece in enumerate(_cut(views, chunk_bytes))], threads
        )
        for future in at_once:
            future.result()
    table = b"".join(digests)
    root = _root_of(preamble, table)
    file_hash.update(table + root)
    _write_all(fd, [memoryview(table + root)], layout.table_offset)
    _write_all(fd, start, 0)
    os.fsync(fd)

    written = _read_frame(fd, os.fstat(fd).st_size, "the file just written")
    if written.header != header or written.root != root:
        raise StoreDamaged(
            "the header read back is not the one that was written",
            hint="check the disk and the memory",
        )
    return file_hash.hexdigest()


def _encode_preamble(layout: Layout, header_digest: bytes) -> bytes:
    fields = _FIELDS.pack(MAGIC, VERSION, 0, *layout, header_digest)
    return fields + hashlib.sha256(fields).digest()


def _write_all(fd: int, views: Sequence[memoryview], offset: int) -> None:
    if _transfer(os.pwritev, fd, views, offset) != sum(map(len, views)):
        raise OSError(5, "the file system accepted no more bytes")


# -- reading ---------------------------------------------------------------------------------------


class BlockFile:
    """An open block file whose header was checked. Keeps the descriptor: a file removed meanwhile
    stays readable.

    header: what the block says; layout: its geometry; root: the digest (hex) that covers
    everything; block_id: from the file's name, None for a file that is not named by its id;
    identity: of the open file.
    """

    def __init__(self, fd: int, path: Path) -> None:
        """Takes over `fd`. Use `BlockFile.open`."""
        self.path = path
        self._fd = fd
        self.identity = identity_of(os.fstat(fd))
        frame = _read_frame(fd, self.identity.size, path)
        self.header = frame.header
        self.layout = frame.layout
        self.root = frame.root.hex()
        self._table = frame.table
        self.block_id = path.stem if path.suffix == SUFFIX and is_digest(path.stem) else None

    @classmethod
    def open(cls, path: Path) -> Self:
        """The block at `path`, its header validated.

        Raises:
            StoreMissing: there is no such file.
            FormatError, UnsupportedVersion, StoreDamaged: see docs/format.md, "Failures".
        """
        fd = open_regular(path)
        try:
            return cls(fd, path)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def payload_bytes(self) -> int:
        return self.layout.payload_bytes

    @property
    def name(self) -> str:
        """How messages call this block: its id's first 12 digits, or the file name."""
        return self.block_id[:12] if self.block_id else self.path.name

    def unchanged(self) -> bool:
        """Whether the open file still has the identity it had when it was opened."""
        return identity_of(os.fstat(self._fd)) == self.identity

    def read_at(self, offset: int, size: int) -> bytes:
        """`size` payload bytes from payload offset `offset`, NOT verified: for a parser that checks
        what it reads.

        Raises:
            ValueError: the range is not within the payload.
            StoreDamaged: the file became shorter.
        """
        if offset < 0 or size < 0 or offset + size > self.payload_bytes:
            raise ValueError(
                f"range [{offset}, {offset + size}) is outside the payload of "
                f"{self.payload_bytes} bytes"
            )
        return _pread_exactly(self._fd, size, self.layout.payload_offset + offset, self.path)

    def read_into(
        self, pieces: Sequence[tuple[int, memoryview]], verify: bool, threads: int = 2
    ) -> None:
        """Read the whole payload into the caller's memory, piece by piece and without an
        intermediate copy.

        pieces: (payload offset, writable view) in ascending order, together exactly the payload.
        With `verify` each chunk is hashed where it was read to. After an exception the destinations
        hold bytes that must not be used.

        Raises:
            ValueError: the pieces are not a partition of the payload.
            StoreDamaged: a chunk is not what was written (block, chunk and byte range are named; of
                several bad chunks the first), or the file became shorter.
        """
        views = [_byte_view(view) for _offset, view in pieces]
        ends = [offset + len(view) for (offset, _view), view in zip(pieces, views, strict=True)]
        starts = [offset for offset, _view in pieces]
        if [0, *ends] != [*starts, self.payload_bytes] or any(view.readonly for view in views):
            raise ValueError(
                f"pieces are not a writable partition of the payload of {self.payload_bytes} bytes"
            )
        chunk_bytes = self.layout.chunk_bytes

        piece_bytes = chunk_bytes if verify else max(chunk_bytes, _READ_BYTES)

        def read_piece(index: int, piece: list[memoryview]) -> Callable[[], None]:
            def task() -> None:
                self._read_payload(piece, index * piece_bytes)
                if verify:
                    self._compare(index, _digest(piece))

            return task

        tasks = [
            read_piece(i, piece)
            for i, piece in enumerate(_cut([v for v in views if len(v)], piece_bytes))
        ]
        _in_threads(tasks, threads)

    def verify(self, threads: int = 2) -> None:
        """Compare every chunk with the chunk table, in bounded memory. Raises StoreDamaged like
        `read_into`.
        """
        chunk_bytes = self.layout.chunk_bytes

        def check(index: int) -> Callable[[], None]:
            def task() -> None:
                piece = memoryview(
                    bytearray(min(chunk_bytes, self.payload_bytes - index * chunk_bytes))
                )
                self._read_payload([piece], index * chunk_bytes)
                self._compare(index, _digest([piece]))

            return task

        _in_threads([check(index) for index in range(self.layout.n_chunks)], threads)

    def file_bytes(self) -> Iterator[bytes]:
        """The whole file, piece by piece."""
        offset = 0
        while piece := os.pread(self._fd, CHUNK_BYTES, offset):
            yield piece
            offset += len(piece)

    def file_digest(self) -> str:
        """SHA-256 of the whole file, which is the block's id."""
        sha = hashlib.sha256()
        for piece in self.file_bytes():
            sha.update(piece)
        return sha.hexdigest()

    def _read_payload(self, views: Sequence[memoryview], offset: int) -> None:
        n = _transfer(os.preadv, self._fd, views, self.layout.payload_offset + offset)
        if n != sum(map(len, views)):
            raise StoreDamaged("block file became shorter while it was read", where=self.path)

    def _compare(self, index: int, digest: bytes) -> None:
        if digest != self._table[_DIGEST_BYTES * index : _DIGEST_BYTES * (index + 1)]:
            start = index * self.layout.chunk_bytes
            end = min(start + self.layout.chunk_bytes, self.payload_bytes)
            raise StoreDamaged(
                f"block {self.name} is damaged in chunk {index} of {self.layout.n_chunks}",
                expected="the bytes that were written",
                got=f"another SHA-256 for payload bytes [{start}, {end})",
                where=self.path,
                hint="taliesin check --repair moves it to quarantine; then save the text again",
            )


def open_regular(path: Path) -> int:
    """A descriptor for reading the regular file `path`.

    Raises:
        StoreMissing: there is no such file.
        FormatError: a symbolic link, a folder, or another thing that is not a regular file.
    """
    try:
        # O_NONBLOCK: a FIFO put in place of a file must not hang the open.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise StoreMissing("no such file", where=path) from error
    except OSError as error:
        if path.is_symlink():
            raise FormatError("a symbolic link is not followed", where=path) from error
        raise FormatError("the file cannot be opened", got=error.strerror, where=path) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FormatError("not a regular file", where=path)
    return fd
