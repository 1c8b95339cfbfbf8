"""Kinds of field that many records share: digests, token ids, times, counts.

Promises: each says in words what it expects, for messages and for the schemas in docs/schemas.
Deliberately does not know: any record.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

# `$` also matches before a last line feed; the length, or `(?![\s\S])`, rules that out.
Digest = Annotated[
    str,
    Meta(
        pattern="^[0-9a-f]{64}$",
        max_length=64,
        description="a SHA-256: 64 lower-case hexadecimal digits",
    ),
]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1, description="a token id, 0 to 2^31-1")]
Count = Annotated[int, Meta(ge=0, description="a whole number, 0 or more")]
PositiveCount = Annotated[int, Meta(ge=1, description="a whole number above 0")]
UtcTime = Annotated[
    str,
    Meta(
        pattern=(
            r"^[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]"
            r"(\.[0-9]{1,9})?Z(?![\s\S])"
        ),
        description="a UTC time, YYYY-MM-DDThh:mm:ssZ",
    ),
]
