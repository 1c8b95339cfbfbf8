"""Write the golden files beside this script: `python tests/golden/make_golden.py`.

A second encoder of docs/format.md that shares nothing with `taliesin`, so that a mistake in one of
them shows. Golden files of
a released version are never made again: a new version adds files.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MAGIC = b"\x89KVB\r\n\x1a\n"
CHUNK_BYTES = 4096

META: dict[str, Any] = {
    "title": "Gwern ap Llwyd — a golden block",
    "created": "2026-01-31T12:00:00Z",
    "recipe": {
        "model": {"sha256": "ab" * 32},
        "n_ubatch": 512,
        "flash_attention": True,
        "rope_scale": 1.5,
        "lora": None,
    },
    "equals": "one-shot",
    "certificate": {"probe": [1, 2, 3], "sha256": ["0" * 64, "f" * 64], "greedy": [7, 8]},
    "after_query": [2, 198],
    "stop": [2],
    "part": {"index": 0, "count": 2},
    "source": {"sha256": "cd" * 32, "bytes": 1234},
    "written_by": "a later program",
}
TOKENS = [1, 0, 2**31 - 1, *range(100, 613)]
TAIL = [5, 6, 7]
TEXT = "Taliesin sang, and the bards said only blerwm, blerwm. Ŵ"
# 2.5 chunks and 3 bytes
PAYLOAD = b"".join(hashlib.sha256(b"payload %d" % i).digest() for i in range(320)) + b"end"


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def encode(
    meta: Any = META,
    tokens: list[int] = TOKENS,
    tail: list[int] = TAIL,
    text: str | bytes = TEXT,
    payload: bytes = PAYLOAD,
    *,
    magic: bytes = MAGIC,
    version: int = 1,
    flags: int = 0,
    cut: int = CHUNK_BYTES,
    padding: bytes = b"\0",
    after_end: bytes = b"",
    **fields: int,
) -> bytes:
    """The bytes of a block with correct digests, whatever rule is broken; `cut`: real chunk size;
    `fields`: what the preamble says.
    """
    raw_meta = meta if isinstance(meta, bytes) else canonical(meta)
    raw_text = text if isinstance(text, bytes) else text.encode()
    chunks = [payload[i : i + cut] for i in range(0, len(payload), cut)]
    region = raw_meta
    region += struct.pack(f"<{len(tokens)}i", *tokens) + struct.pack(f"<{len(tail)}i", *tail)
    region += raw_text
    region += padding * (-(144 + len(region)) % 4096)
    numbers = {
        "meta_bytes": len(raw_meta),
        "n_tokens": len(tokens),
        "n_tail": len(tail),
        "text_bytes": len(raw_text),
        "n_chunks": len(chunks),
        "chunk_bytes": cut,
        "payload_offset": 144 + len(region),
        "payload_bytes": len(payload),
    } | fields
    start = (
        magic
        + struct.pack("<II8Q", version, flags, *numbers.values())
        + hashlib.sha256(region).digest()
    )
    preamble_digest = hashlib.sha256(start).digest()
    table = b"".join(hashlib.sha256(chunk).digest() for chunk in chunks)
    root = hashlib.sha256(preamble_digest + table).digest()
    return start + preamble_digest + region + payload + table + root + after_end


def flipped(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


def bundle(block: bytes, minor: int) -> bytes:
    block_id = hashlib.sha256(block).hexdigest()
    entry = {"name": "golden", "id": block_id, "bytes": len(block), "root": block[-32:].hex()}
    fields: dict[str, Any] = {"format": "taliesin-bundle", "version": 1, "blocks": [entry]}
    if minor:
        fields["minor"] = minor
        fields["sha256"] = hashlib.sha256(canonical(fields)).hexdigest()
    manifest = canonical(fields)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in (("manifest.json", manifest), (f"blocks/{block_id}.kvb", block)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mode = 0o400
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


# Damage -> bytes; the file is named by the damage. What reading each must raise stands in
# tests/taliesin/store/test_blockfile.py.
def damaged(block: bytes) -> dict[str, bytes]:
    table_offset = len(block) - 4 * 32
    payload_offset = table_offset - len(PAYLOAD)
    return {
        "zero_bytes": b"",
        "cut_in_preamble": block[:100],
        "cut_in_header": block[:2000],
        "cut_in_payload": block[: table_offset - 1],
        "cut_in_trailer": block[:-1],
        "byte_after_end": block + b"\0",
        "crlf_became_lf": block.replace(b"\r\n", b"\n", 1),
        "flip_in_version": flipped(block, 11),
        "flip_in_sizes": flipped(block, 24),
        "flip_in_header_digest": flipped(block, 90),
        "flip_in_preamble_digest": flipped(block, 120),
        "flip_in_table": flipped(block, table_offset + 40),
        "flip_in_root": flipped(block, len(block) - 1),
        "flip_in_meta": flipped(block, 160),
        "flip_in_tokens": flipped(block, 144 + len(canonical(META)) + 5),
        "flip_in_padding": flipped(block, payload_offset - 1),
        "flip_in_payload": flipped(block, payload_offset + CHUNK_BYTES + 10),
        "version_2": encode(version=2),
        "no_tokens": encode(tokens=[]),
        "tokens_beyond_file": encode(n_tokens=1 << 24),
        "duplicate_key": encode(canonical(META)[:-1] + b',"title":"two"}'),
        "llama_slot_file": struct.pack("<III3i", 0x67677371, 2, 3, 1, 2, 3) + bytes(64),
    }


def main() -> None:
    block = encode()
    (HERE / "block_v1.kvb").write_bytes(block)
    (HERE / "block_v1.sha256").write_text(f"{hashlib.sha256(block).hexdigest()}  block_v1.kvb\n")
    (HERE / "bundle_v1.tar").write_bytes(bundle(block, 0))
    (HERE / "bundle_v1_1.tar").write_bytes(bundle(block, 1))
    folder = HERE / "damaged"
    folder.mkdir(exist_ok=True)
    for name, content in damaged(block).items():
        (folder / f"{name}.kvb").write_bytes(content)


if __name__ == "__main__":
    main()
