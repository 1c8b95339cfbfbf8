"""Raw results beside others' programs: llama-server's slot files, and two packages that keep
states."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from taliesin.host.findings import (
    Amount,
    Finding,
    Line,
    Machine,
    Result,
    Said,
    Seconds,
    duration,
)
from taliesin.host.records import Record


class EqualSteps(Record):
    """Of the steps, how many chose the same token, and how many had the same log-probabilities."""

    tokens: Amount
    logprobs: Amount


class ServerRow(Record):
    """One length under one configuration; where the server refused, only that is said."""

    configuration: str
    file: str
    n: Amount
    reused: Amount | None = None
    evaluated: Amount | None = None
    of: Amount | None = None
    live: EqualSteps | None = None
    one_shot: EqualSteps | None = None
    live_is_one_shot: EqualSteps | None = None
    fresh_seconds: Seconds | None = None
    seconds: Seconds | None = None
    mode: str | None = None
    exact_options: bool | None = None
    refused: str | None = None


class TwoClients(Record):
    """Two clients on four slots, with turns or without: what their answers equal."""

    turns: bool
    seconds: Seconds
    equal: Amount
    other_logprobs: Amount
    other_tokens: Amount
    not_reused: Amount

    @property
    def n(self) -> int:
        return self.equal + self.other_logprobs + self.other_tokens + self.not_reused


class ServerTable(Result):
    """`server_table.py`."""

    SCHEMA = "taliesin.bench.server/1"
    created: str
    machine: str
    model: str
    model_sha256: str
    window: Amount
    server_sha256: str
    commit: str
    n_threads: Amount
    n_ubatch: Amount
    n_query: Amount
    steps: Amount
    n_probs: Amount
    rows: list[ServerRow]
    two_clients: list[TwoClients]

    def findings(self, file: str) -> Iterator[Finding]:
        configurations: dict[tuple[str, str], list[ServerRow]] = {}
        for row in self.rows:
            configurations.setdefault((row.configuration, row.file), []).append(row)
        for (configuration, slot_file), rows in configurations.items():
            used = [row for row in rows if row.reused]
            equal = [row for row in used if row.live and row.live.logprobs == row.of]
            yield Line(
                "C6",
                {
                    "model": f"{self.model}, {self.n_threads} thread(s)",
                    "server": configuration,
                    "slot file": slot_file,
                    "block reused": f"{len(used)} of {len(rows)} lengths",
                    "then equal to the live run": f"{len(equal)} of {len(used)}" if used else "-",
                },
            )
        for run in self.two_clients:
            yield Said(
                "C6",
                f"{self.model}: two clients on four slots for {run.seconds:.0f} s, "
                f"{'with' if run.turns else 'without'} "
                f"turns: {run.equal} of {run.n} answers equal the fresh ones",
            )


class PeerRow(Record):
    """One package, one length; where it could not be run, `problem` says why."""

    model: str
    n_tokens: Amount
    peer: str
    variant: str
    reused: Amount | None = None
    tokens_equal: Amount | None = None
    vectors_equal: Amount | None = None
    of: Amount | None = None
    stored_bytes: Amount | None = None
    fresh_seconds: Seconds | None = None
    restored_seconds: tuple[Seconds, ...] = ()
    model_sha256: str | None = None
    machine: Machine | None = None
    problem: str | None = None


class Peers(Result):
    """`peers.py`."""

    SCHEMA = "taliesin.bench.peers/1"
    packages: dict[str, str]
    rows: list[PeerRow]

    def findings(self, file: str) -> Iterator[Finding]:
        for row in self.rows:
            cells: dict[str, object] = {
                "model": row.model,
                "tokens": row.n_tokens,
                "peer": f"{row.peer} ({row.variant})",
            }
            if (
                row.vectors_equal is None
                or row.fresh_seconds is None
                or row.stored_bytes is None
                or not row.restored_seconds
            ):
                yield Said("R6", ", ".join(map(str, cells.values())) + ": not run")
                continue
            cells["steps equal to the live run"] = f"{row.vectors_equal} of {row.of}"
            cells["first token, restored"] = duration(statistics.median(row.restored_seconds))
            cells["fresh"] = duration(row.fresh_seconds)
            yield Line("R6", {**cells, "stored": f"{row.stored_bytes / 1e6:.1f} MB"})
