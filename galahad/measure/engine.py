"""What answered, as records keep it.

Deliberately does not know: how it is asked (`galahad.answerer`).
"""

from __future__ import annotations

from taliesin.host.findings import Amount
from taliesin.host.records import Record


class EngineRecord(Record, omit_defaults=True):
    """What decides which texts come out (`Answerer.identity`). A server names its model only."""

    engine: str
    model: str
    model_sha256: str | None = None
    n_ctx: Amount | None = None
