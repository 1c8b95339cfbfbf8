"""The block file format: golden bytes, one negative test per rule, and what a writer and a reader
promise.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
import random
import stat
import struct
import tracemalloc
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taliesin.errors import (
    FormatError,
    StoreDamaged,
    StoreMissing,
    TaliesinError,
    UnsupportedVersion,
)
from taliesin.host.canonical import canonical_json
from taliesin.store import blockfile
from taliesin.store import header as blockheader
from taliesin.store.blockfile import BlockFile
from taliesin.store.header import BlockHeader, Certificate, Part, Source

GOLDEN = Path(__file__).parents[2] / "golden"
_spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make_golden.py")
assert _spec is not None
assert _spec.loader is not None
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)

GOLDEN_HEADER = BlockHeader(
    title="Gwern ap Llwyd — a golden block",
    created="2026-01-31T12:00:00Z",
    recipe=golden.META["recipe"],
    equals="one-shot",
    tokens=np.array(golden.TOKENS, np.int32),
    tail=np.array([5, 6, 7], np.int32),
    text=golden.TEXT,
    certificate=Certificate((1, 2, 3), ("0" * 64, "f" * 64), (7, 8)),
    after_query=(2, 198),
    stop=(2,),
    part=Part(0, 2),
    source=Source("cd" * 32, 1234),
    extra={"written_by": "a later program"},
)


def write(
    path: Path, header: BlockHeader = GOLDEN_HEADER, payload: Any = golden.PAYLOAD, **options: Any
) -> str:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        return blockfile.write(fd, header, payload, **options)
    finally:
        os.close(fd)


def put_bytes(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def read_all(path: Path, verify: bool = True) -> bytes:
    with BlockFile.open(path) as block:
        destination = bytearray(block.payload_bytes)
        block.read_into([(0, memoryview(destination))], verify)
        return bytes(destination)


# -- the golden bytes ------------------------------------------------------------------------------


def test_golden_block_of_version_1_is_read() -> None:
    with BlockFile.open(GOLDEN / "block_v1.kvb") as block:
        assert block.header == GOLDEN_HEADER
        assert block.header.tokens.dtype == np.int32
        assert block.payload_bytes == len(golden.PAYLOAD)
        assert block.read_at(0, block.payload_bytes) == golden.PAYLOAD
        assert block.file_digest() == (GOLDEN / "block_v1.sha256").read_text()[:64]
        block.verify()
    assert read_all(GOLDEN / "block_v1.kvb") == golden.PAYLOAD


def test_writer_makes_the_golden_bytes(tmp_path: Path) -> None:
    block_id = write(tmp_path / "b.kvb", chunk_bytes=golden.CHUNK_BYTES)
    assert (tmp_path / "b.kvb").read_bytes() == (GOLDEN / "block_v1.kvb").read_bytes()
    assert block_id == hashlib.sha256((tmp_path / "b.kvb").read_bytes()).hexdigest()


GOLDEN_DAMAGE: dict[str, tuple[type[TaliesinError], str]] = {
    "zero_bytes": (FormatError, "empty file"),
    "cut_in_preamble": (StoreDamaged, "cut short"),
    "cut_in_header": (StoreDamaged, "cut short"),
    "cut_in_payload": (StoreDamaged, "cut short"),
    "cut_in_trailer": (StoreDamaged, "cut short"),
    "byte_after_end": (StoreDamaged, "after its end"),
    "crlf_became_lf": (StoreDamaged, "magic"),
    "flip_in_version": (UnsupportedVersion, "version 16777217"),
    "flip_in_sizes": (StoreDamaged, "preamble"),
    "flip_in_header_digest": (StoreDamaged, "preamble"),
    "flip_in_preamble_digest": (StoreDamaged, "preamble"),
    "flip_in_table": (StoreDamaged, "root"),
    "flip_in_root": (StoreDamaged, "root"),
    "flip_in_meta": (StoreDamaged, "header"),
    "flip_in_tokens": (StoreDamaged, "header"),
    "flip_in_padding": (StoreDamaged, "header"),
    "flip_in_payload": (StoreDamaged, "chunk 1 of 3"),
    "version_2": (UnsupportedVersion, "version 2"),
    "no_tokens": (FormatError, "n_tokens"),
    "tokens_beyond_file": (FormatError, "payload_offset"),
    "duplicate_key": (FormatError, "canonical"),
    "llama_slot_file": (FormatError, "llama-server"),
}


@pytest.mark.parametrize("path", sorted((GOLDEN / "damaged").iterdir()), ids=lambda path: path.stem)
def test_golden_damage_is_refused_and_named(path: Path) -> None:
    error, message = GOLDEN_DAMAGE[path.stem]
    with pytest.raises(error, match=message):
        read_all(path)


def test_every_golden_damage_has_a_file() -> None:
    assert {path.stem for path in (GOLDEN / "damaged").iterdir()} == set(GOLDEN_DAMAGE)


# -- one negative test per rule --------------------------------------------------------------------

BIG = 1 << 63


@pytest.mark.parametrize(
    ("forgery", "message"),
    [
        ({"version": 0}, "version 0"),
        ({"flags": 1}, "flags"),
        ({"meta_bytes": 1}, "meta_bytes"),
        ({"meta_bytes": (1 << 20) + 1}, "meta_bytes"),
        ({"n_tokens": 0}, "n_tokens"),
        ({"n_tokens": (1 << 24) + 1}, "n_tokens"),
        ({"n_tokens": BIG}, "n_tokens"),
        ({"n_tail": (1 << 20) + 1}, "n_tail"),
        ({"text_bytes": (1 << 28) + 1}, "text_bytes"),
        ({"text_bytes": BIG}, "text_bytes"),
        ({"n_chunks": 0}, "n_chunks"),
        ({"n_chunks": 4}, "n_chunks"),
        ({"n_chunks": (1 << 20) + 1}, "n_chunks"),
        ({"chunk_bytes": 0}, "chunk_bytes"),
        ({"chunk_bytes": 2048}, "chunk_bytes"),
        ({"chunk_bytes": 5000}, "power of two"),
        ({"chunk_bytes": 1 << 27}, "chunk_bytes"),
        ({"payload_offset": 8192}, "payload_offset"),
        ({"payload_offset": 0}, "payload_offset"),
        ({"payload_bytes": 0}, "payload_bytes"),
        ({"payload_bytes": (1 << 44) + 1}, "payload_bytes"),
        ({"padding": b"\1"}, "padding"),
        ({"tokens": [1, -1]}, "negative token"),
        ({"tail": [-(2**31)]}, "negative token"),
        ({"text": b"\xff"}, "UTF-8"),
        ({"meta": b"[]"}, "not a JSON object"),
        ({"meta": b"{}"}, "no field title"),
        ({"meta": b'{"a":'}, "valid JSON"),
        ({"meta": b"\xff\xff"}, "valid JSON"),
        ({"meta": b'{"a":NaN}'}, "valid JSON"),
        ({"meta": b'{"a":1e999}'}, "valid JSON"),
        ({"meta": b'{"a":"\\ud800"}'}, "valid JSON"),
        ({"meta": b'{"a": 1}'}, "canonical"),
        ({"meta": b'{"b":1,"a":1}'}, "canonical"),
        ({"meta": b"[" * 100_000}, "nested|valid JSON"),
        ({"meta": b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"}, "nested"),
        ({"meta": b'{"a":' + b"9" * 10_000 + b"}"}, "valid JSON"),
    ],
    ids=str,
)
def test_broken_rule_is_refused_behind_correct_digests(
    tmp_path: Path, forgery: dict[str, Any], message: str
) -> None:
    path = put_bytes(tmp_path / "b.kvb", golden.encode(**forgery))
    with pytest.raises(FormatError, match=message):
        BlockFile.open(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("title", 1),
        ("created", "yesterday"),
        ("created", "2026-01-31T12:00:00+02:00"),
        ("created", None),
        ("recipe", {}),
        ("recipe", []),
        ("equals", "one shot"),
        ("equals", None),
        ("certificate", {}),
        ("certificate", {"probe": [1], "sha256": [], "greedy": []}),
        ("certificate", {"probe": [1], "sha256": ["F" * 64], "greedy": []}),
        ("certificate", {"probe": [1], "sha256": ["f" * 63], "greedy": []}),
        ("certificate", {"probe": [True], "sha256": ["f" * 64], "greedy": []}),
        ("certificate", {"probe": [1], "sha256": ["f" * 64], "greedy": [], "more": 1}),
        ("after_query", [1.5]),
        ("after_query", [-1]),
        ("after_query", 7),
        ("stop", [1 << 31]),
        ("part", {"index": 2, "count": 2}),
        ("part", {"index": -1, "count": 2}),
        ("part", {"index": 0}),
        ("part", None),
        ("source", {"sha256": "ab", "bytes": 1}),
        ("source", {"sha256": "ab" * 32, "bytes": -1}),
        ("source", "a file"),
    ],
)
def test_meta_field_of_another_kind_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = put_bytes(tmp_path / "b.kvb", golden.encode(golden.META | {key: value}))
    with pytest.raises(FormatError, match="the block's meta") as caught:
        BlockFile.open(path)
    assert key in str(caught.value)
    assert caught.value.where == path


@pytest.mark.parametrize("key", ["title", "created", "recipe", "equals"])
def test_required_meta_field_is_required(tmp_path: Path, key: str) -> None:
    meta = {k: v for k, v in golden.META.items() if k != key}
    path = put_bytes(tmp_path / "b.kvb", golden.encode(meta))
    with pytest.raises(FormatError, match=f"no field {key}"):
        BlockFile.open(path)


def test_optional_meta_fields_may_be_absent(tmp_path: Path) -> None:
    meta = {key: golden.META[key] for key in ("title", "created", "recipe", "equals")}
    with BlockFile.open(
        put_bytes(tmp_path / "b.kvb", golden.encode(meta, tail=[], text=""))
    ) as block:
        header = block.header
        assert (header.certificate, header.after_query, header.stop, header.source) == (
            None,
            (),
            (),
            None,
        )
        assert header.part == Part(0, 1)
        assert header.extra == {}


def test_announced_sizes_are_not_allocated_before_they_fit_the_file(tmp_path: Path) -> None:
    # 2^28 bytes of text, with the geometry that would follow from them, in a file of 14 kB.
    text_bytes = 1 << 28
    text_end = 144 + len(golden.canonical(golden.META)) + 4 * (len(golden.TOKENS) + 3) + text_bytes
    forged = golden.encode(text_bytes=text_bytes, payload_offset=-(-text_end // 4096) * 4096)
    path = put_bytes(tmp_path / "b.kvb", forged)
    tracemalloc.start()
    try:
        with pytest.raises(StoreDamaged, match="cut short"):
            BlockFile.open(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(length=st.integers(0, len(golden.encode()) - 1))
@settings(max_examples=60, deadline=None)
def test_block_cut_anywhere_is_refused(
    tmp_path_factory: pytest.TempPathFactory, length: int
) -> None:
    path = put_bytes(tmp_path_factory.getbasetemp() / "cut.kvb", golden.encode()[:length])
    with pytest.raises((FormatError, StoreDamaged)):
        BlockFile.open(path)


@given(data=st.binary(max_size=600))
@settings(max_examples=100, deadline=None)
def test_no_bytes_after_the_magic_make_anything_but_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = put_bytes(tmp_path_factory.getbasetemp() / "noise.kvb", golden.MAGIC + data)
    with pytest.raises((FormatError, StoreDamaged, UnsupportedVersion)):
        BlockFile.open(path)


@given(
    numbers=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 20_000), min_size=8, max_size=8),
    size=st.integers(0, 9000),
)
@settings(max_examples=200, deadline=None)
def test_no_geometry_behind_a_correct_digest_makes_anything_but_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], size: int
) -> None:
    start = golden.MAGIC + struct.pack("<II8Q", 1, 0, *numbers) + bytes(32)
    content = start + hashlib.sha256(start).digest() + bytes(size)
    path = put_bytes(tmp_path_factory.getbasetemp() / "geometry.kvb", content)
    with pytest.raises((FormatError, StoreDamaged)):
        BlockFile.open(path)


# -- cases from public reports ---------------------------------------------------------------------


@given(offset=st.integers(0, len(golden.encode()) - 1), bit=st.integers(0, 7))
@settings(max_examples=300, deadline=None)
def test_kv06_one_flipped_bit_anywhere_is_refused_and_the_next_read_is_right(
    tmp_path_factory: pytest.TempPathFactory, offset: int, bit: int
) -> None:
    good = golden.encode()
    bad = bytearray(good)
    bad[offset] ^= 1 << bit
    path = put_bytes(tmp_path_factory.getbasetemp() / "flip.kvb", bytes(bad))
    with pytest.raises((FormatError, StoreDamaged, UnsupportedVersion)):
        read_all(path)
    assert read_all(put_bytes(path, good)) == golden.PAYLOAD


def test_kv07_block_of_another_version_says_so(tmp_path: Path) -> None:
    path = put_bytes(tmp_path / "b.kvb", golden.encode(version=2))
    with pytest.raises(UnsupportedVersion) as caught:
        BlockFile.open(path)
    assert "version 2" in str(caught.value)
    assert "version 1" in str(caught.value)
    assert str(path) in str(caught.value)


def test_kv08_empty_block_is_neither_written_nor_read(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="n_tokens"):
        write(tmp_path / "a.kvb", dataclasses.replace(GOLDEN_HEADER, tokens=np.zeros(0, np.int32)))
    with pytest.raises(FormatError, match="without state"):
        write(tmp_path / "b.kvb", payload=b"")
    with pytest.raises(FormatError, match="without state"):
        write(tmp_path / "c.kvb", payload=[np.zeros(0, np.uint8)])
    assert all(path.stat().st_size == 0 for path in tmp_path.iterdir())
    for forged in (golden.encode(tokens=[]), golden.encode(payload=b"")):
        with pytest.raises(FormatError):
            BlockFile.open(put_bytes(tmp_path / "d.kvb", forged))


def test_kv08_missing_block_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing, match="no such file"):
        BlockFile.open(tmp_path / "none.kvb")


def test_kv16_symlink_block_is_refused(tmp_path: Path) -> None:
    target = put_bytes(tmp_path / "target.kvb", golden.encode())
    link = tmp_path / "link.kvb"
    link.symlink_to(target)
    with pytest.raises(FormatError, match="symbolic link"):
        BlockFile.open(link)


def test_kv25_zero_byte_file_is_detected(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="0 bytes"):
        BlockFile.open(put_bytes(tmp_path / "b.kvb", b""))


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (b"GGUF\3\0\0\0" + bytes(200), "GGUF model"),
        (struct.pack("<II", 0x67677371, 2) + bytes(200), "sequence state"),
        (struct.pack("<II", 0x6767736E, 9) + bytes(200), "session"),
        (b"\x1f\x8b\x08" + bytes(200), "gzip"),
        (b"PK\3\4" + bytes(20), "zip"),
        (b"hello, this is text", "not a block file"),
        (bytes(4096), "not a block file"),
    ],
)
def test_another_kind_of_file_is_named(tmp_path: Path, start: bytes, name: str) -> None:
    with pytest.raises(FormatError, match=name):
        BlockFile.open(put_bytes(tmp_path / "b.kvb", start))


def test_real_archives_are_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(FormatError, match="zip archive"):
        BlockFile.open(tmp_path / "a.zip")
    with pytest.raises(FormatError, match="taliesin import"):
        BlockFile.open(GOLDEN / "bundle_v1.tar")


def test_folder_and_fifo_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        with pytest.raises(FormatError, match="not a regular file"):
            BlockFile.open(path)


# -- round trips -----------------------------------------------------------------------------------

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
token_lists = st.lists(st.integers(0, 2**31 - 1), max_size=40)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
headers = st.builds(
    BlockHeader,
    title=st.text(),
    created=st.just("2026-01-31T12:00:00.123456Z"),
    recipe=st.dictionaries(st.text(), json_values, min_size=1, max_size=4),
    equals=st.sampled_from(get_args(blockheader.Equals)),
    tokens=token_lists.filter(bool).map(lambda ids: np.array(ids, np.int32)),
    tail=token_lists.map(lambda ids: np.array(ids, np.int32)),
    text=st.text(max_size=200),
    certificate=st.none()
    | st.builds(
        Certificate,
        token_lists.map(tuple),
        st.lists(digests, min_size=1, max_size=3).map(tuple),
        token_lists.map(tuple),
    ),
    after_query=token_lists.map(tuple),
    stop=token_lists.map(tuple),
    part=st.integers(1, 9).flatmap(lambda n: st.builds(Part, st.integers(0, n - 1), st.just(n))),
    source=st.none() | st.builds(Source, digests, st.integers(0, 2**60)),
    extra=st.dictionaries(st.text().map("x-".__add__), json_values, max_size=2),
)


def cut_at_random(buffer: bytearray, rng: random.Random) -> list[tuple[int, memoryview]]:
    """`buffer` as consecutive (offset, view) pieces, some of them empty."""
    cuts = sorted(
        [0, len(buffer), *(rng.randint(0, len(buffer)) for _ in range(rng.randint(0, 12)))]
    )
    view = memoryview(buffer)
    return [(a, view[a:b]) for a, b in pairwise(cuts)]


@given(header=headers, payload=st.binary(min_size=1, max_size=20_000), seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, header: BlockHeader, payload: bytes, seed: int
) -> None:
    rng = random.Random(seed)
    path = tmp_path_factory.getbasetemp() / f"round-{seed}.kvb"
    path.unlink(missing_ok=True)
    pieces = [bytes(view) for _offset, view in cut_at_random(bytearray(payload), rng)]
    block_id = write(path, header, pieces, chunk_bytes=4096, threads=rng.randint(1, 3))
    assert block_id == hashlib.sha256(path.read_bytes()).hexdigest()
    destination = bytearray(len(payload))
    with BlockFile.open(path) as block:
        assert block.header == header
        block.read_into(
            cut_at_random(destination, rng), verify=rng.random() < 0.5, threads=rng.randint(1, 3)
        )
    assert destination == payload
    path.unlink()


def test_buffers_of_any_kind_are_one_payload(tmp_path: Path) -> None:
    floats = np.arange(6, dtype=np.float32).reshape(2, 3)
    ids = {
        write(tmp_path / "a.kvb", payload=floats),
        write(tmp_path / "b.kvb", payload=[floats[0], memoryview(floats[1])]),
        write(tmp_path / "c.kvb", payload=bytearray(floats.tobytes())),
    }
    assert len(ids) == 1


def test_chunk_of_more_pieces_than_one_system_call_takes(tmp_path: Path) -> None:
    payload = random.Random(0).randbytes(3 * 4096 + 5)
    write(
        tmp_path / "b.kvb",
        payload=[payload[i : i + 3] for i in range(0, len(payload), 3)],
        chunk_bytes=1 << 20,
    )
    destination = bytearray(len(payload))
    view = memoryview(destination)
    with BlockFile.open(tmp_path / "b.kvb") as block:
        block.read_into([(i, view[i : i + 1]) for i in range(len(payload))], verify=True)
    assert destination == payload


def test_short_reads_and_writes_of_the_system_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_read, real_write = os.preadv, os.pwritev
    monkeypatch.setattr(
        os, "pwritev", lambda fd, views, offset: real_write(fd, [views[0][:777]], offset)
    )
    monkeypatch.setattr(
        os, "preadv", lambda fd, views, offset: real_read(fd, [views[0][:555]], offset)
    )
    write(tmp_path / "b.kvb", chunk_bytes=4096)
    assert read_all(tmp_path / "b.kvb") == golden.PAYLOAD
    monkeypatch.undo()
    assert (tmp_path / "b.kvb").read_bytes() == golden.encode()


# -- the writer ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": {"x": float("nan")}}, "cannot be written as JSON"),
        ({"recipe": {"x": object()}}, "cannot be written as JSON"),
        ({"recipe": {"x": "\ud800"}}, "cannot be written as JSON"),
        ({"recipe": {}}, "recipe"),
        ({"created": "2026-01-31 12:00"}, "created"),
        ({"equals": "both"}, "equals"),
        ({"stop": (-1,)}, "stop"),
        ({"text": "\ud800"}, "text"),
        ({"title": "x" * (1 << 20)}, "meta_bytes"),
        ({"tokens": np.array([[1]], np.int32)}, "tokens"),
        ({"tokens": np.array([1.0])}, "tokens"),
        ({"tokens": np.array([-1], np.int32)}, "tokens"),
        ({"tail": np.array([1 << 31], np.int64)}, "tail"),
    ],
    ids=str,
)
def test_writer_refuses_what_a_reader_would(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        write(tmp_path / "b.kvb", dataclasses.replace(GOLDEN_HEADER, **changes))
    assert (tmp_path / "b.kvb").stat().st_size == 0


def test_writer_distrusts_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def lossy(fd: int, views: list[memoryview], offset: int) -> int:
        if offset == 0:
            views = [views[0], memoryview(bytes(views[1]).replace(b"golden", b"gilded"))]
        return real(fd, views, offset)

    monkeypatch.setattr(os, "pwritev", lossy)
    with pytest.raises(StoreDamaged):
        write(tmp_path / "b.kvb")


def test_file_is_no_block_before_its_payload_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_fd: int) -> None:
        raise OSError(5, "the disk is gone")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="gone"):
        write(tmp_path / "b.kvb")
    with pytest.raises(FormatError):
        BlockFile.open(tmp_path / "b.kvb")


# -- the reader ------------------------------------------------------------------------------------


def test_first_bad_chunk_is_named_with_its_bytes(tmp_path: Path) -> None:
    payload = bytes(10 * 4096 + 7)
    write(tmp_path / "b.kvb", payload=payload, chunk_bytes=4096)
    raw = bytearray((tmp_path / "b.kvb").read_bytes())
    for chunk in (10, 7, 4):
        raw[len(raw) - 12 * 32 - len(payload) + chunk * 4096 + 1] ^= 0x80
    path = put_bytes(tmp_path / f"{'ab' * 32}.kvb", bytes(raw))
    with BlockFile.open(path) as block:
        for threads in (1, 4):
            destination = memoryview(bytearray(len(payload)))
            with pytest.raises(StoreDamaged, match=r"block abababababab .*chunk 4 of 11") as caught:
                block.read_into([(0, destination)], verify=True, threads=threads)
            assert "[16384, 20480)" in str(caught.value)
            with pytest.raises(StoreDamaged, match="chunk 4 of 11"):
                block.verify(threads)
        block.read_into([(0, destination)], verify=False)


def test_pieces_that_are_no_partition_of_the_payload_are_refused() -> None:
    n = len(golden.PAYLOAD)
    view = memoryview(bytearray(n + 1))
    with BlockFile.open(GOLDEN / "block_v1.kvb") as block:
        for pieces in (
            [],
            [(0, view[: n - 1])],
            [(0, view)],
            [(1, view[: n - 1])],
            [(0, view[:5]), (6, view[6:n])],
            [(0, view[:5]), (4, view[4:n])],
            [(5, view[5:n]), (0, view[:5])],
            [(0, memoryview(bytes(n)))],
        ):
            with pytest.raises(ValueError, match="partition"):
                block.read_into(pieces, verify=False)


def test_range_outside_the_payload_is_refused() -> None:
    with BlockFile.open(GOLDEN / "block_v1.kvb") as block:
        assert block.read_at(10, 5) == golden.PAYLOAD[10:15]
        assert block.read_at(block.payload_bytes, 0) == b""
        for offset, size in (
            (-1, 1),
            (0, -1),
            (block.payload_bytes, 1),
            (0, block.payload_bytes + 1),
        ):
            with pytest.raises(ValueError, match="outside"):
                block.read_at(offset, size)


def test_file_that_shrinks_while_it_is_open_is_damage(tmp_path: Path) -> None:
    path = put_bytes(tmp_path / "b.kvb", golden.encode())
    with BlockFile.open(path) as block:
        os.truncate(path, len(golden.encode()) - 200)
        assert not block.unchanged()
        with pytest.raises(StoreDamaged, match="shorter"):
            block.read_into([(0, memoryview(bytearray(block.payload_bytes)))], verify=False)
        with pytest.raises(StoreDamaged, match="shorter"):
            block.read_at(block.payload_bytes - 10, 10)


def test_removed_file_stays_readable_while_it_is_open(tmp_path: Path) -> None:
    path = put_bytes(tmp_path / "b.kvb", golden.encode())
    with BlockFile.open(path) as block:
        path.unlink()
        assert block.read_at(0, block.payload_bytes) == golden.PAYLOAD


def test_descriptor_is_not_left_open_when_a_block_is_refused(tmp_path: Path) -> None:
    path = put_bytes(tmp_path / "b.kvb", golden.encode(version=2))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(UnsupportedVersion):
            BlockFile.open(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_header_of_the_reader_cannot_be_changed_by_accident() -> None:
    with (
        BlockFile.open(GOLDEN / "block_v1.kvb") as block,
        pytest.raises(ValueError, match="read-only"),
    ):
        block.header.tokens[0] = 5


def test_identity_changes_with_the_file(tmp_path: Path) -> None:
    path = put_bytes(tmp_path / "b.kvb", golden.encode())
    with BlockFile.open(path) as block:
        identity = block.identity
        assert block.unchanged()
        path.chmod(0o400)
        assert not block.unchanged()
    with BlockFile.open(path) as block:
        assert block.identity != identity
        assert stat.S_ISREG(path.stat().st_mode)
        assert block.identity.stamp == ":".join(
            str(getattr(path.stat(), f"st_{field}"))
            for field in ("dev", "ino", "size", "mtime_ns", "ctime_ns")
        )


def test_canonical_json_is_stable() -> None:
    value = {"b": [1, 2.5, None, True], "a": {"ŵ": "x\n"}}
    raw = canonical_json(value)
    assert raw == '{"a":{"ŵ":"x\\n"},"b":[1,2.5,null,true]}'.encode()
    assert json.loads(raw) == value
