"""What a verification found: `VerifyReport`, one shape for every engine.

An engine that gives logits counts equal logits vectors; a llama-server gives the best
log-probabilities of each step, and those are counted instead. `level` says which it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from taliesin.host.records import Record, plain
from taliesin.prove.equivalence import Statistics


class VerifyRow(Record):
    """Equality of one query length over all trials: of `n_vectors` compared, how many are equal,
    and where the first difference is (step, 0 = right after the query).

    n_reused, n_evaluated: prompt tokens as a server counted them; tokens_block_then_query,
    tokens_one_shot: how many steps chose the same token. None where that was not compared, or
    follows from equal logits.
    """

    query_tokens: int
    n_vectors: int
    equal_block_then_query: int
    equal_one_shot: int | None = None
    first_difference: int | None = None
    n_reused: int | None = None
    n_evaluated: int | None = None
    tokens_block_then_query: int | None = None
    tokens_one_shot: int | None = None


class VerifyReport(Record):
    """What `verify` found. `exact` is the verdict at `level`: everything equals the reference that
    the block promises, and the engine's own options are exact ones.

    name: what the block was called; inexact: why the engine or the graft is not exact;
    one_shot_holds: None if not compared; statistics: None where there are no logits; seconds:
    median, block prefill (or graft) and query; sabotage: how the graft was broken on purpose.
    """

    SCHEMA: ClassVar[str] = "taliesin.verify/2"

    name: str
    engine: Literal["embedded", "server"]
    level: str
    block_id: str
    title: str
    n_tokens: int
    promise: str
    trials: int
    n_steps: int
    rows: list[VerifyRow]
    block_then_query_holds: bool
    one_shot_holds: bool | None
    statistics: Statistics | None
    fresh_seconds: float
    graft_seconds: float
    sabotage: str | None
    recipe: dict[str, Any]
    inexact: list[str]
    exact: bool

    def named(self, name: str) -> VerifyReport:
        """The same report under the name that the block was asked for by."""
        return msgspec.structs.replace(self, name=name)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        fields: dict[str, Any] = plain(self)
        return fields


class Verdict(NamedTuple):
    """What follows from the rows of a report; `one_shot` is None where it was not compared."""

    block_then_query: bool
    one_shot: bool | None
    exact: bool


def judged(rows: Sequence[VerifyRow], promise: str, inexact: Sequence[str] = ()) -> Verdict:
    """Whether every row equals its references, and so the block its `promise`."""
    block_then_query = all(row.equal_block_then_query == row.n_vectors for row in rows)
    compared = all(row.equal_one_shot is not None for row in rows)
    one_shot = all(row.equal_one_shot == row.n_vectors for row in rows) if compared else None
    exact = not inexact and block_then_query and (promise != "one-shot" or bool(one_shot))
    return Verdict(block_then_query, one_shot, exact)
