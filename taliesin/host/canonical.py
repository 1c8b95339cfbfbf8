"""JSON in the one form that is hashed and compared, and the digests that name what was hashed.

Promises that equal values give equal bytes (sorted keys, no spaces, every key once), and that only
such bytes are read back.
Deliberately does not know: what an object says.
"""

from __future__ import annotations

import json
import re
from typing import Any

from taliesin.errors import FormatError

_HEX64 = re.compile(r"[0-9a-f]{64}")


def canonical_json(value: Any) -> bytes:
    """`value` as UTF-8 JSON: sorted keys, no spaces, nothing escaped that need not be.

    Raises:
        ValueError: NaN, an infinity, or a lone surrogate. TypeError: not a JSON type.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def parse_canonical_json(raw: bytes, what: str, where: object = None) -> dict[str, Any]:
    """The object that `raw` encodes.

    Raises:
        FormatError: not UTF-8, not JSON, not an object, nested too deeply, or not in canonical form
            (which includes a key given twice).
    """

    def no_constant(name: str) -> float:
        raise ValueError(f"{name} is not JSON")

    try:
        value = json.loads(raw.decode(), parse_constant=no_constant)
        canonical = canonical_json(value) == raw
    except ValueError as error:
        raise FormatError(f"{what} is not valid JSON", got=str(error), where=where) from error
    except RecursionError as error:
        raise FormatError(f"{what} is nested too deeply", where=where) from error
    if not isinstance(value, dict):
        raise FormatError(f"{what} is not a JSON object", got=type(value).__name__, where=where)
    if not canonical:
        raise FormatError(
            f"{what} is not in canonical form",
            expected="sorted keys, no spaces, every key once",
            where=where,
        )
    return value


def is_digest(value: object) -> bool:
    """Whether `value` is a SHA-256 in lower-case hexadecimal."""
    return isinstance(value, str) and _HEX64.fullmatch(value) is not None
