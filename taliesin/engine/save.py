"""Texts as blocks: `save` and `save_tokens`, over any `Backend`.

Promises: a stored block says how its text became ids, which part of the text it is and what it is
exact against; a text that does not fit in one block becomes several, without a gap. Deliberately
does not know: how a backend computes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import NamedTuple

from taliesin.engine import prompt
from taliesin.engine.backend import LONG, Align, Backend
from taliesin.errors import UsageError
from taliesin.host import clock
from taliesin.store.header import BlockHeader, Part, Source
from taliesin.store.library import BlockInfo, Library

_RESERVE = 1024  # tokens of the model's context kept free beside a block by default


class Saved(NamedTuple):
    """One block that `save` stored. Seconds are wall time; `save_seconds` is writing to disk."""

    info: BlockInfo
    header: BlockHeader
    prefill_seconds: float
    state_seconds: float
    save_seconds: float


def save(
    backend: Backend,
    library: Library,
    text: str,
    name: str,
    *,
    align: Align = "auto",
    block_tokens: int | None = None,
    raw: bool = False,
    title: str | None = None,
    replace_existing: bool = False,
    on_block: Callable[[int, int], None] = lambda _done, _count: None,
) -> list[Saved]:
    """Store `text` as one block under `name`, or as `name#1`, `name#2`, ... where it does not fit
    in one.

    `align` "auto" cuts texts of at least `LONG` x n_ubatch tokens at the last multiple of n_ubatch,
    so that the graft equals the one-shot prompt; the ids behind the cut are kept as `tail` and
    prefilled with the query. Other texts are stored whole.

    Raises:
        UsageError: empty text, a name that is taken, or a block size out of range. Others: as
        `Backend.compute` and `Library.put`.
    """
    if not text.strip():
        raise UsageError("nothing to save", expected="a text", got="an empty one")
    model = backend.model
    shape = prompt.frame(model, raw=raw)
    limit = _limit(backend, shape, block_tokens, align)
    parts = prompt.document_parts(model, shape, text, limit)
    data = text.encode("utf-8", "surrogatepass")
    source = Source(hashlib.sha256(data).hexdigest(), len(data))
    first_line = next((line.strip()[:80] for line in text.splitlines() if line.strip()), name)
    saved = []
    for index, ids in enumerate(parts):
        is_only = len(parts) == 1
        body = ids[len(shape.before) : len(ids) - len(shape.between)]
        saved.append(
            save_tokens(
                backend,
                library,
                ids,
                name if is_only else f"{name}#{index + 1}",
                align=align,
                shape=shape,
                title=title or first_line,
                text=text if is_only else model.text(body),
                part=Part(index, len(parts)),
                source=source,
                replace_existing=replace_existing,
            )
        )
        on_block(index + 1, len(parts))
    return saved


def _limit(backend: Backend, shape: prompt.Frame, block_tokens: int | None, align: Align) -> int:
    """Tokens that one block may have."""
    n_ctx_train, n_ubatch = backend.model.n_ctx_train, backend.settings.n_ubatch
    longest = max(n_ctx_train - _RESERVE, 512) if n_ctx_train else 1 << 20
    limit = longest if block_tokens is None else block_tokens
    smallest = len(shape.before) + len(shape.between) + 16
    if not smallest <= limit <= n_ctx_train:
        raise UsageError(
            "the block size is out of range",
            expected=f"{smallest}..{n_ctx_train} tokens",
            got=limit,
        )
    if align == "aligned" or (align == "auto" and limit >= LONG * n_ubatch):
        return max(limit - limit % n_ubatch, smallest)
    return limit


def save_tokens(
    backend: Backend,
    library: Library,
    tokens: Sequence[int],
    name: str,
    *,
    align: Align = "auto",
    shape: prompt.Frame | None = None,
    title: str = "",
    text: str = "",
    part: Part = Part(0, 1),
    source: Source | None = None,
    replace_existing: bool = False,
) -> Saved:
    """Prefill `tokens` from position 0 and store them as one block."""
    block = backend.compute(tokens, align=align)
    header = BlockHeader(
        title=title or name,
        created=clock.now(),
        recipe=block.recipe,
        equals=block.equals,
        tokens=block.tokens,
        tail=block.tail,
        text=text.encode("utf-8", "replace").decode("utf-8"),
        certificate=block.certificate,
        after_query=shape.after if shape else (),
        stop=shape.stop if shape else tuple(sorted(backend.model.end_of_generation)),
        part=part,
        source=source,
        extra=MappingProxyType({"frame": shape.kind if shape else "tokens", **block.extra}),
    )
    writing = time.perf_counter()
    info = library.put(name, header, block.state, replace=replace_existing)
    written = time.perf_counter()
    return Saved(info, header, block.prefill_seconds, block.state_seconds, written - writing)
