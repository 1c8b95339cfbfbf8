"""What a graft and one question to it took: `GraftReport`, one shape for every engine."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from taliesin.engine.backend import Grafted, Place
from taliesin.host.records import Record, plain


class GraftDifference(Record):
    """One field of the recipe that differs, with both values."""

    field: str
    stored: Any
    here: Any


class GraftRestored(Record):
    """What putting the block back took; see `graft.Restored`."""

    n_tokens: int
    read_bytes: int
    written_bytes: int
    read_seconds: float
    place_seconds: float


class GraftReport(Record):
    """What `taliesin graft --json` prints.

    url: of the server, None for the embedded engine; resident: a server's slot held the block all
    along; n_reused, n_prefilled: tokens of the block, and tokens that were evaluated after it;
    seconds are wall time; equals: what the graft equals; level: what "exact" says on this engine.
    """

    SCHEMA: ClassVar[str] = "taliesin.graft/2"

    engine: Literal["embedded", "server"]
    url: str | None
    text: str
    n_generated: int
    generate_seconds: float
    prefill_seconds: float
    n_prefilled: int
    n_reused: int
    resident: bool
    restored: GraftRestored
    certified: bool
    exact: bool
    label: str
    level: str
    equals: str
    differences: list[GraftDifference]
    inexact: list[str]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        fields: dict[str, Any] = plain(self)
        return fields


def report(grafted: Grafted[Place], text: str, *, url: str | None = None) -> GraftReport:
    """What the last question to `grafted`, which gave `text`, took."""
    asked = grafted.place.asked
    return GraftReport(
        engine=grafted.place.kind,
        url=url,
        text=text,
        n_generated=asked.n_generated,
        generate_seconds=asked.generate_seconds,
        prefill_seconds=asked.prefill_seconds,
        n_prefilled=asked.n_prefilled,
        n_reused=asked.n_reused,
        resident=grafted.place.resident,
        restored=GraftRestored(**grafted.restored._asdict()),
        certified=grafted.certified,
        exact=grafted.exact,
        label=grafted.label,
        level=grafted.place.level,
        equals=grafted.header.equals,
        differences=[
            GraftDifference(field=d.field, stored=d.stored, here=d.here)
            for d in grafted.differences
        ],
        inexact=grafted.inexact,
    )
