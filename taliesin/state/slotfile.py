"""llama-server's slot files: read as structure, turned into a block's payload, and written so that
a stock server reuses them exactly.

A slot file is what `POST /slots/{id}?action=save` leaves in `--slot-save-path` (llama.cpp of
llama-cpp-python 0.3.36, `llama_context::state_seq_save_file`), little-endian:

    u32 magic "GGSQ", u32 version (3), u32 n_words
    n_words x i32: plain token ids, or, as llama-server writes them, -1, u32 version (1), u32
    n_tokens, ids, u32 n_media (0) per cache part, as in `seqstate` but with every stream of the
    server:
        u32 n_stream, then n_stream x { u32 n_cells, and if any: cells, layers and rows }

No model identity, no checksum, no length: a truncated or foreign file can crash or silently mislead
the server, so nothing that does not parse to its last byte is written back or restored.

On a model with window layers a server's own file is loaded and then ignored: it holds only the
positions inside the window, and the server wants to see an older one before it reuses a prompt.
`lay_out` writes the part of the window layers as the ring that a
fresh run leaves: every ring cell in index order, with filler for the masked positions. One thing
cannot be said in a file, the write head. It is said through the server's own habit of removing what
follows the common prefix: ring cell n mod R, where the next token belongs, is given position n. The
next request has n tokens in common, the server removes position n, and llama.cpp moves the head to
the freed cell. So the graft is exact at every length; only blocks that fit inside the window (n <=
W) are never reused by this build, whatever the file says.

This module does not know servers, libraries or models.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from taliesin.errors import (
    FormatError,
    StoreFull,
    StoreMissing,
    UnsupportedModel,
    UnsupportedVersion,
    UsageError,
)
from taliesin.host import durable
from taliesin.state import placement, seqstate
from taliesin.state.seqstate import CELL, Part, Rows, SequenceState
from taliesin.store.blockfile import open_regular

MAGIC = 0x67677371
VERSION = 3
TOKENS_VERSION = 1
STATE_PREFIX = struct.pack(
    "<Ii", 0xAF143CD8, 0
)  # what a host state has in front and a slot file has not: magic, seq_id

_HEADER = struct.Struct("<III")
_PACKED = -1  # LLAMA_TOKEN_NULL in place of the first id: a packed list follows
_MAX_STREAMS = 256  # LLAMA_MAX_SEQ


@dataclass(frozen=True)
class SlotFile:
    """A parsed slot file, in memory.

    tokens: (n_tokens,) int32; packed: llama-server's token list (a plain one otherwise); n_stream:
    streams of the saving server's cache; seq_id: the slot it was saved from; parts: the cells, with
    offsets into `data`, which is the whole file.
    """

    path: Path
    data: memoryview
    tokens: npt.NDArray[np.int32]
    packed: bool
    n_stream: int
    seq_id: int
    parts: tuple[Part, ...]

    @property
    def windowed(self) -> bool:
        return len(self.parts) == 2

    def filler(self) -> npt.NDArray[np.bool_]:
        """Which cells of the window part hold nothing but zeros, which no computed key is; shape
        (n_cells,).
        """
        rows, n = self.parts[-1].keys[0], self.parts[-1].n_cells
        keys = np.frombuffer(self.data, np.uint8, n * rows.row_bytes, rows.offset).reshape(
            n, rows.row_bytes
        )
        return np.logical_not(np.asarray(keys.any(axis=1), np.bool_))

    @property
    def laid_out(self) -> bool:
        """Whether the window part is a whole ring, as `lay_out` writes it."""
        return self.windowed and bool(self.filler().any())

    @property
    def window(self) -> int:
        """Width of the window as the file shows it: 0 without window layers, and on a file that
        still lies inside the window.
        """
        if not self.windowed:
            return 0
        inside = int(self.parts[1].n_cells - self.filler().sum())
        return inside if inside < len(self.tokens) else 0

    def payload(self) -> list[memoryview | bytes]:
        """The state as `llama_state_seq_get_data` of a one-sequence context gives it: a block's
        payload, in pieces.

        Raises:
            FormatError: the file is laid out for a restore; a block holds what a save leaves.
        """
        if self.laid_out:
            raise FormatError(
                "the slot file is laid out already",
                expected="a file as the server saved it",
                got="filler cells",
                where=self.path,
            )
        pieces: list[memoryview | bytes] = [STATE_PREFIX]
        for part in self.parts:
            pieces.append(struct.pack("<I", 1))
            body = part.offset + 4 + part.n_cells * CELL.itemsize
            cells = np.frombuffer(self.data, CELL, part.n_cells, part.offset + 4).copy()
            cells["seq_id"] = 0
            pieces += [struct.pack("<I", part.n_cells), cells.tobytes(), self.data[body : part.end]]
        return pieces


def read(path: Path) -> SlotFile:
    """The slot file at `path`, every count checked against the bytes that are there.

    Raises:
        StoreMissing: no such file. UnsupportedVersion: of another llama.cpp. UnsupportedModel: with
        images or audio.
        FormatError: anything else that is not a slot file with as many cells as tokens.
    """
    try:
        descriptor = open_regular(path)
    except StoreMissing as error:
        error.message = "no such slot file"
        raise
    try:
        n_bytes = os.fstat(descriptor).st_size
        if n_bytes < _HEADER.size:
            raise FormatError(
                "not a slot file: too short",
                expected=f"at least {_HEADER.size} bytes",
                got=n_bytes,
                where=path,
            )
        # before the memory for all of it
        _require_ours(os.pread(descriptor, _HEADER.size, 0), path)
        try:
            data = memoryview(mmap.mmap(-1, n_bytes))
        except OSError as error:
            raise FormatError(
                "the slot file does not fit into memory", got=f"{n_bytes} bytes", where=path
            ) from error
        done = 0
        while done < n_bytes:
            n = os.preadv(descriptor, [data[done:]], done)
            if n == 0:
                raise FormatError("the slot file became shorter while it was read", where=path)
            done += n
    finally:
        os.close(descriptor)
    return parse(data, path)


def parse(data: memoryview, path: Path) -> SlotFile:
    """`read`, of bytes in memory; `path` is for messages."""
    n_words = _require_ours(data[: _HEADER.size], path)
    start = _HEADER.size + 4 * n_words
    if start > len(data):
        raise FormatError(
            "the slot file is shorter than its token list",
            expected=start,
            got=len(data),
            where=path,
        )
    words = np.frombuffer(data, np.int32, n_words, _HEADER.size)
    tokens = _tokens(words, path)
    try:
        n_stream, seq_id, parts = _parts(data, start)
    except FormatError as error:
        error.message = "not a whole slot file: " + error.message.rpartition(": ")[2]
        error.where = f"{path}, byte {str(error.where).rpartition(' ')[2]}"
        error.hint = "the file is truncated or damaged; save the slot again"
        raise
    if parts[0].n_cells != len(tokens):
        raise FormatError(
            "the slot file has not one cell for each token",
            expected=len(tokens),
            got=parts[0].n_cells,
            where=path,
        )
    return SlotFile(
        path, data, tokens, bool(n_words) and int(words[0]) == _PACKED, n_stream, seq_id, parts
    )


def _require_ours(head: bytes | memoryview, path: Path) -> int:
    """Words of the token list, of a file that begins with `head` and is a slot file of this
    build.
    """
    magic, version, n_words = _HEADER.unpack(head)
    if magic != MAGIC:
        raise FormatError(
            "not a slot file", expected=f"magic {MAGIC:#x}", got=f"{magic:#x}", where=path
        )
    if version != VERSION:
        raise UnsupportedVersion(
            "a slot file of another llama.cpp",
            expected=f"version {VERSION}",
            got=version,
            where=path,
            hint="save it again with the server of this build (make server)",
        )
    return int(n_words)


def _tokens(words: npt.NDArray[np.int32], path: Path) -> npt.NDArray[np.int32]:
    if not len(words) or int(words[0]) != _PACKED:
        tokens = words
    else:
        version, n_tokens = (int(words[1]), int(words[2])) if len(words) >= 4 else (None, 0)
        if version != TOKENS_VERSION:
            raise UnsupportedVersion(
                "a token list of another llama-server",
                expected=TOKENS_VERSION,
                got=version,
                where=path,
            )
        if not 0 <= n_tokens <= len(words) - 4:
            raise FormatError(
                "the token list is out of range", expected=len(words) - 4, got=n_tokens, where=path
            )
        if int(words[3 + n_tokens]) or len(words) != n_tokens + 4:
            raise UnsupportedModel("a slot with images or audio is not supported", where=path)
        tokens = words[3 : 3 + n_tokens]
    if not len(tokens):
        raise FormatError(
            "the slot file is empty: the slot held no tokens when it was saved", where=path
        )
    if int(tokens.min()) < 0:
        raise FormatError("a token id is negative", got=int(tokens.min()), where=path)
    return tokens.copy()


def _parts(data: memoryview, start: int) -> tuple[int, int, tuple[Part, ...]]:
    """Streams, sequence and cache parts of a slot file whose state begins at `start`."""

    def walk(n_parts: int) -> tuple[int, int, tuple[Part, ...]]:
        cursor = seqstate.Cursor(lambda at, size: bytes(data[at : at + size]), len(data))
        cursor.offset = start
        found = [_part(cursor, last=i == n_parts - 1) for i in range(n_parts)]
        if cursor.offset != len(data):
            raise FormatError(
                "bytes are left over",
                where=f"byte {cursor.offset}",
                expected=len(data),
                got=cursor.offset,
            )
        if len({(n_stream, seq_id) for n_stream, seq_id, _part in found}) != 1:
            raise FormatError("the cache parts are of different slots", where=f"byte {start}")
        return found[0][0], found[0][1], tuple(part for *_, part in found)

    # Nothing in the file says how many caches the model has: one, or two with window layers.
    try:
        return walk(1)
    except FormatError:
        return walk(2)


def _part(cursor: seqstate.Cursor, last: bool) -> tuple[int, int, Part]:
    offset = cursor.offset
    (n_stream,) = struct.unpack("<I", cursor.take(4, "a part's stream count"))
    if not 1 <= n_stream <= _MAX_STREAMS:
        raise FormatError(
            "the stream count is out of range",
            expected=f"1..{_MAX_STREAMS}",
            got=n_stream,
            where=f"byte {offset}",
        )
    held: list[tuple[int, Part]] = []
    for stream in range(n_stream):
        at = cursor.offset
        (n_cells,) = struct.unpack("<I", cursor.take(4, "a cell count"))
        if n_cells:
            cursor.require(CELL.itemsize, "the first cell")
            seq_id = int(
                np.frombuffer(cursor.read(cursor.offset, CELL.itemsize), CELL)["seq_id"][0]
            )
            held.append(
                (
                    seq_id,
                    seqstate.cells(cursor, at, n_cells, seq_id, last and stream == n_stream - 1),
                )
            )
    if len(held) != 1:
        raise FormatError(
            "not one stream holds the slot's cells",
            expected=1,
            got=len(held),
            where=f"byte {offset}",
        )
    return n_stream, *held[0]


def lay_out(
    payload: memoryview, tokens: npt.NDArray[np.int32], window: int, ring: int, n_stream: int = 1
) -> memoryview:
    """The slot file that restores a block exactly: its bytes, in memory.

    Args:
        payload: a state as `llama_state_seq_get_data` gives it (a block's payload, or
        `SlotFile.payload` joined).
        tokens: (n_tokens,) int32, its ids.
        window: width of the model's window, 0 without window layers.
        ring: cells of the serving context's window cache (`placement.ring_cells`; all its cells
        with `--swa-full`).
        n_stream: streams of that server's cache: its slots, or 1 with `--kv-unified`.

    Raises:
        FormatError, UnsupportedModel: the payload is not what a fresh run of `tokens` leaves.
    """
    n_tokens = len(tokens)
    state = seqstate.parse(
        lambda at, size: bytes(payload[at : at + size]), len(payload), 2 if window else 1
    )
    words = np.concatenate([[_PACKED, TOKENS_VERSION, n_tokens], tokens, [0]]).astype("<i4")
    head = _HEADER.pack(MAGIC, VERSION, len(words)) + words.tobytes()
    streams = struct.pack("<I", n_stream)
    other_streams = bytes(4 * (n_stream - 1))
    if not window:
        placement.check(state, n_tokens, 0, 0)
        body = payload[state.parts[0].offset + 4 : state.parts[0].end]
        return memoryview(b"".join((head, streams, body, other_streams)))
    ring_image = _ring_image(payload, state, n_tokens, window, ring)
    ordinary = payload[state.parts[0].offset + 4 : state.parts[0].end]
    return memoryview(
        b"".join((head, streams, ordinary, other_streams, streams, ring_image, other_streams))
    )


def _ring_image(
    payload: memoryview, state: SequenceState, n_tokens: int, window: int, ring: int
) -> memoryview:
    """The window part from its cell count on, as a ring with the write head said through position
    n.
    """
    step = placement.plan(state, n_tokens, window, ring)[0]
    assert isinstance(step, placement.Restore)
    image = memoryview(mmap.mmap(-1, step.n_bytes))
    for target, data in step.literals:
        image[target : target + len(data)] = data
    for copy in step.copies:
        image[copy.target : copy.target + copy.size] = payload[
            copy.source : copy.source + copy.size
        ]
    # The plan begins with the prefix and an empty ordinary part; then this part's stream count.
    start = seqstate.PREFIX_BYTES + seqstate.PART_BYTES + 4
    if n_tokens > ring and n_tokens % ring:
        struct.pack_into("<i", image, start + 4 + CELL.itemsize * (n_tokens % ring), n_tokens)
    return image[start:]


def write(path: Path, image: memoryview) -> None:
    """Write a slot file under `path` at once or not at all, readable by its owner only; one that is
    there is replaced.

    Raises:
        StoreFull: no space, the folder is gone, or `path` cannot be written.
    """
    try:
        durable.write(path, image)
    except OSError as error:
        raise StoreFull(
            "the slot file cannot be written", got=error.strerror, where=path
        ) from error


def describe(part: Part) -> dict[str, object]:
    """What `slotfile show` prints of a part, JSON-ready; types by ggml number."""

    def kinds(rows: tuple[Rows, ...]) -> list[int]:
        return sorted({r.kind for r in rows})

    positions = part.positions
    return {
        "cells": part.n_cells,
        "positions": [int(positions.min()), int(positions.max())] if len(positions) else [],
        "in_order": bool((np.diff(positions) == 1).all()),
        "layers": len(part.keys),
        "type_k": kinds(part.keys),
        "type_v": kinds(part.values),
        "v_transposed": part.v_trans,
        "bytes": part.end - part.offset,
    }


def relay(
    found: SlotFile,
    *,
    n_ubatch: int,
    n_ctx: int,
    n_seq_max: int = 1,
    swa_full: bool = False,
    n_stream: int | None = None,
) -> memoryview:
    """A slot file as a server saved it, laid out for a server with these options.

    Args:
        n_seq_max: slots that share one cache: all of them with `--kv-unified`, otherwise 1.
        n_stream: streams of the server that is to restore it; as in the file if not given.

    Raises:
        UsageError: there is nothing to lay out: no window layers, laid out already, or all of it
        inside the window.
        FormatError: the cells are not where a server with these options puts them.
    """
    reason = (
        "the model has no window layers: the server reuses the file as it is"
        if not found.windowed
        else "the file is laid out already"
        if found.laid_out
        else "all its positions are inside the window: this build reuses no such prompt, "
        "however it is laid out"
        if not found.window
        else None
    )
    if reason:
        raise UsageError("nothing to lay out", got=reason, where=found.path)
    ring = n_ctx if swa_full else placement.ring_cells(found.window, n_ubatch, n_seq_max, n_ctx)
    try:
        return lay_out(
            memoryview(b"".join(found.payload())),
            found.tokens,
            found.window,
            ring,
            n_stream or found.n_stream,
        )
    except FormatError as error:
        error.where = f"{found.path}, {error.where}"
        error.hint = (
            "name --ubatch, --ctx and --kv-unified as the saving server had them; a "
            "used slot may hold more than one prompt"
        )
        raise
