"""JSON in the one form that galahad hashes, and the hash of a text or a value.

Unlike `taliesin.host.canonical` it keeps lone surrogates: a model's output may hold half a
character, and it must still have a hash.
"""

from __future__ import annotations

import hashlib
import json


def canonical(value: object) -> bytes:
    """One way to write `value` as JSON, for hashing."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode("utf-8", "surrogatepass")


def sha256_of(value: object) -> str:
    """SHA-256 (hex) of a text as UTF-8, or of anything else as canonical JSON."""
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else canonical(value)
    return hashlib.sha256(data).hexdigest()
