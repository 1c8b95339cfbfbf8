"""Times as every file of both packages keeps them: UTC in whole seconds, `2026-01-31T12:00:00Z`, so
that they sort as text.
"""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    return of_unix(datetime.now(UTC).timestamp())


def of_unix(seconds: float) -> str:
    """The same for a Unix time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
