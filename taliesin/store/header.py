"""What a block says besides its payload: the meta object, the tokens and the text, to bytes and
back (docs/format.md, "Block file").

Promises that a header that was encoded or decoded obeys every rule of the format, and that one
decoded equals the one encoded.
Deliberately does not know: where in a file the bytes lie (`blockfile`), and what a recipe means
(`recipe`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from taliesin.errors import FormatError
from taliesin.host import records
from taliesin.host.canonical import canonical_json, parse_canonical_json
from taliesin.host.kinds import Count, Digest, PositiveCount, TokenId, UtcTime
from taliesin.host.records import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Equals = Literal["one-shot", "block-then-query"]


class Certificate(Record, kw_only=False):
    """What a fixed probe gave right after the fresh prefill: its ids, one digest per logits vector,
    the greedy ids.
    """

    probe: tuple[TokenId, ...]
    sha256: Annotated[tuple[Digest, ...], msgspec.Meta(min_length=1)]
    greedy: tuple[TokenId, ...]


class Part(Record, kw_only=False):
    """Place of a block in a text that was split over `count` blocks; `index` from 0."""

    index: Count
    count: PositiveCount

    def __post_init__(self) -> None:
        if self.index >= self.count:
            raise ValueError("0 <= index < count")


class Source(Record, kw_only=False):
    """The file that the text came from."""

    sha256: Digest
    bytes: Count


class BlockMeta(Record, forbid_unknown_fields=False):
    """The meta object of a block file. Keys that a later program added are allowed and kept."""

    SCHEMA = "taliesin.block-meta/1"

    title: str
    created: UtcTime
    recipe: Annotated[dict[str, Any], msgspec.Meta(min_length=1)]
    equals: Equals
    certificate: Certificate | None = None
    after_query: tuple[TokenId, ...] = ()
    stop: tuple[TokenId, ...] = ()
    part: Part = Part(0, 1)
    source: Source | None = None


@dataclass(frozen=True, eq=False)
class BlockHeader:
    """What a block file says besides its payload. The writer takes one, a reader gives an equal one
    back.

    tokens: (n_tokens,) int32, the block's ids, the first at position 0; tail: (n_tail,) int32, ids
    that follow the block in its text and are prefilled with the query; extra: keys of the meta
    object that this version does not know.
    """

    title: str
    created: str
    recipe: Mapping[str, Any]
    equals: Equals
    tokens: NDArray[np.int32]
    tail: NDArray[np.int32]
    text: str = ""
    certificate: Certificate | None = None
    after_query: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()
    part: Part = field(default_factory=lambda: Part(0, 1))
    source: Source | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def meta(self) -> dict[str, Any]:
        """The meta object of the file."""
        known = {name: getattr(self, name) for name in BlockMeta.__struct_fields__}
        return {**self.extra, **records.plain({**known, "recipe": dict(self.recipe)})}

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockHeader):
            return NotImplemented
        return (
            canonical_json(self.meta()) == canonical_json(other.meta())
            and self.text == other.text
            and self.tokens.tolist() == other.tokens.tolist()
            and self.tail.tolist() == other.tail.tolist()
        )


class Encoded(NamedTuple):
    """A header as the four spans of a block file, in their order there."""

    meta: bytes
    tokens: bytes
    tail: bytes
    text: bytes


def encode(header: BlockHeader) -> Encoded:
    """The header's bytes.

    Raises:
        FormatError: it breaks a rule of the format.
    """
    meta = _encode_meta(header)
    tokens = _encode_ids(header.tokens, "tokens")
    tail = _encode_ids(header.tail, "tail")
    try:
        text = header.text.encode()
    except UnicodeEncodeError as error:
        raise FormatError("text is not valid Unicode", got=str(error)) from error
    return Encoded(meta, tokens, tail, text)


def decode(encoded: Encoded, where: object) -> BlockHeader:
    """The header that the bytes hold; `where` is named in messages.

    Raises:
        FormatError: they break a rule of the format.
    """
    fields = _checked_meta(encoded.meta, where)
    tokens = _decode_ids(encoded.tokens, "tokens", where)
    tail = _decode_ids(encoded.tail, "tail", where)
    try:
        text = encoded.text.decode()
    except UnicodeDecodeError as error:
        raise FormatError("text is not UTF-8", got=str(error), where=where) from error
    return BlockHeader(**fields, tokens=tokens, tail=tail, text=text)


# -- meta ------------------------------------------------------------------------------------------


def _checked_meta(raw: bytes, where: object) -> dict[str, Any]:
    """The constructor arguments of `BlockHeader` that the meta object gives. Raises FormatError."""
    fields = parse_canonical_json(raw, "the block's meta", where)
    meta = records.convert(fields, BlockMeta, what="the block's meta", where=where)
    known = {name: getattr(meta, name) for name in BlockMeta.__struct_fields__}
    extra = {key: value for key, value in fields.items() if key not in known}
    return {**known, "extra": extra}


def _encode_meta(header: BlockHeader) -> bytes:
    try:
        raw = canonical_json(header.meta())
    except (TypeError, ValueError) as error:
        raise FormatError("meta cannot be written as JSON", got=str(error)) from error
    _checked_meta(raw, None)
    return raw


# -- token ids -------------------------------------------------------------------------------------


def _encode_ids(ids: NDArray[np.int32], what: str) -> bytes:
    import numpy as np

    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise FormatError(
            f"{what} is not a list of token ids", got=f"{array.dtype} of shape {array.shape}"
        )
    if array.size and (int(array.min()) < 0 or int(array.max()) >= 1 << 31):
        raise FormatError(f"{what} holds an id that is out of range", expected="0 to 2^31-1")
    return array.astype("<i4").tobytes()


def _decode_ids(raw: bytes, what: str, where: object) -> NDArray[np.int32]:
    import numpy as np

    ids = np.frombuffer(raw, dtype="<i4").astype(np.int32)  # (n,) int32, in this host's byte order
    if ids.size and int(ids.min()) < 0:
        raise FormatError(f"{what} holds a negative token id", got=int(ids.min()), where=where)
    ids.flags.writeable = False
    return ids
