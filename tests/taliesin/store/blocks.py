"""Small blocks and what is in a library, for the tests of `taliesin.store`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from taliesin.store.check import check as check_library
from taliesin.store.header import BlockHeader
from taliesin.store.library import Library

GOLDEN = Path(__file__).parents[2] / "golden"


def header(title: str = "a title") -> BlockHeader:
    return BlockHeader(
        title=title,
        created="2026-01-31T12:00:00Z",
        recipe={"n_ubatch": 512},
        equals="block-then-query",
        tokens=np.arange(20, dtype=np.int32),
        tail=np.zeros(0, np.int32),
    )


def payload(seed: int = 0, n_bytes: int = 5000) -> bytes:
    return np.random.default_rng(seed).bytes(n_bytes)


def names(store: Library) -> list[str | None]:
    return [line.name for line in store.list()]


def read(store: Library, name: str) -> bytes:
    with store.open(name) as block:
        destination = bytearray(block.payload_bytes)
        block.read_into([(0, memoryview(destination))], verify=True)
        return bytes(destination)


def files(store: Library) -> dict[str, bytes]:
    """Every file but the cache and the lock."""
    return {
        str(path.relative_to(store.path)): path.read_bytes()
        for path in sorted(store.path.rglob("*"))
        if path.is_file() and not path.name.startswith(("index.sqlite3", "lock"))
    }


TRAILER = 64  # a block of one chunk: its digest and the root


def damage(path: Path, offset: int = -TRAILER - 1) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(raw))
    path.chmod(0o400)


def kinds(store: Library, **options: Any) -> list[tuple[str, bool]]:
    """(kind, whether something was done about it) of every finding."""
    return [
        (finding.kind, finding.action is not None)
        for finding in check_library(store, **options).findings
    ]
