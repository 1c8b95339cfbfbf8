"""What a block says besides its payload: the meta object, the tokens and the text, to bytes and
back (docs/format.md, "Block file").

Promises that a header that was encoded or decoded obeys every rule of the format, and that one
decoded equals the one encoded.
Deliberately does not know: where in a file the bytes lie (`blockfile`), and what a recipe means
(`fingerprint`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from taliesin.errors import FormatError
from taliesin.host.canonical import canonical_json, is_digest, parse_canonical_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CREATED = re.compile(r"\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d(\.\d{1,9})?Z")

Equals = Literal["one-shot", "block-then-query"]
EQUALS: tuple[Equals, ...] = ("one-shot", "block-then-query")


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a fixed probe gave right after the fresh prefill: its ids, one digest per logits vector,
    the greedy ids.
    """

    probe: tuple[int, ...]
    sha256: tuple[str, ...]
    greedy: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Place of a block in a text that was split over `count` blocks; `index` from 0."""

    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Source:
    """The file that the text came from."""

    sha256: str
    bytes: int


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
        return {
            **self.extra,
            "title": self.title,
            "created": self.created,
            "recipe": dict(self.recipe),
            "equals": self.equals,
            "certificate": None if self.certificate is None else asdict(self.certificate),
            "after_query": list(self.after_query),
            "stop": list(self.stop),
            "part": asdict(self.part),
            "source": None if self.source is None else asdict(self.source),
        }

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
    fields = _checked_meta(parse_canonical_json(encoded.meta, "meta", where), where)
    tokens = _decode_ids(encoded.tokens, "tokens", where)
    tail = _decode_ids(encoded.tail, "tail", where)
    try:
        text = encoded.text.decode()
    except UnicodeDecodeError as error:
        raise FormatError("text is not UTF-8", got=str(error), where=where) from error
    return BlockHeader(**fields, tokens=tokens, tail=tail, text=text)


# -- meta ------------------------------------------------------------------------------------------


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _ids(value: object, key: str, where: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(_is_int(v) and 0 <= v < 1 << 31 for v in value):
        raise FormatError(
            f"meta field {key} is not a list of token ids",
            expected="integers 0 to 2^31-1",
            where=where,
        )
    return tuple(value)


def _sub_object(value: object, key: str, names: set[str], where: object) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != names:
        raise FormatError(
            f"meta field {key} is malformed",
            expected=f"an object with {sorted(names)}",
            where=where,
        )
    return value


def _certificate(value: object, where: object) -> Certificate | None:
    if value is None:
        return None
    fields = _sub_object(value, "certificate", {"probe", "sha256", "greedy"}, where)
    digests = fields["sha256"]
    if not isinstance(digests, list) or not digests or not all(map(is_digest, digests)):
        raise FormatError("meta field certificate.sha256 is not a list of digests", where=where)
    return Certificate(
        _ids(fields["probe"], "certificate.probe", where),
        tuple(digests),
        _ids(fields["greedy"], "certificate.greedy", where),
    )


def _part(value: object, where: object) -> Part:
    fields = _sub_object(value, "part", {"index", "count"}, where)
    index, count = fields["index"], fields["count"]
    if not (_is_int(index) and _is_int(count) and 0 <= index < count):
        raise FormatError(
            "meta field part is out of range",
            expected="0 <= index < count",
            got=fields,
            where=where,
        )
    return Part(index, count)


def _source(value: object, where: object) -> Source | None:
    if value is None:
        return None
    fields = _sub_object(value, "source", {"sha256", "bytes"}, where)
    if not is_digest(fields["sha256"]) or not _is_int(fields["bytes"]) or fields["bytes"] < 0:
        raise FormatError(
            "meta field source is malformed", expected="sha256 and bytes", got=fields, where=where
        )
    return Source(fields["sha256"], fields["bytes"])


_KNOWN_KEYS = frozenset(
    ("title", "created", "recipe", "equals", "certificate", "after_query", "stop", "part", "source")
)


def _checked_meta(meta: dict[str, Any], where: object) -> dict[str, Any]:
    """The constructor arguments of `BlockHeader` that the meta object gives. Raises FormatError, a
    message per rule.
    """
    for key in ("title", "created", "recipe", "equals"):
        if key not in meta:
            raise FormatError(f"meta field {key} is missing", where=where)
    if not isinstance(meta["title"], str):
        raise FormatError(
            "meta field title is not a string", got=type(meta["title"]).__name__, where=where
        )
    if not isinstance(meta["created"], str) or not _CREATED.fullmatch(meta["created"]):
        raise FormatError(
            "meta field created is not a UTC time",
            expected="YYYY-MM-DDThh:mm:ssZ",
            got=meta["created"],
            where=where,
        )
    if not isinstance(meta["recipe"], dict) or not meta["recipe"]:
        raise FormatError("meta field recipe is not an object with fields", where=where)
    if meta["equals"] not in EQUALS:
        raise FormatError(
            "meta field equals is unknown",
            expected=" or ".join(EQUALS),
            got=meta["equals"],
            where=where,
        )
    return {
        "title": meta["title"],
        "created": meta["created"],
        "recipe": meta["recipe"],
        "equals": meta["equals"],
        "certificate": _certificate(meta.get("certificate"), where),
        "after_query": _ids(meta.get("after_query", []), "after_query", where),
        "stop": _ids(meta.get("stop", []), "stop", where),
        "part": _part(meta.get("part", {"index": 0, "count": 1}), where),
        "source": _source(meta.get("source"), where),
        "extra": {key: value for key, value in meta.items() if key not in _KNOWN_KEYS},
    }


def _encode_meta(header: BlockHeader) -> bytes:
    try:
        raw = canonical_json(header.meta())
    except (TypeError, ValueError) as error:
        raise FormatError("meta cannot be written as JSON", got=str(error)) from error
    _checked_meta(parse_canonical_json(raw, "meta"), None)
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
