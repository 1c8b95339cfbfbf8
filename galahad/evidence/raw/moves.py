"""Raw results on blocks that outlive a machine or an upgrade."""

from __future__ import annotations

from collections.abc import Iterator

from taliesin.host.findings import (
    Amount,
    Finding,
    Line,
    Machine,
    Result,
    Seconds,
    device,
    duration,
)
from taliesin.host.records import Record


class BlockProof(Record):
    """What was proved of one block on the other machine."""

    name: str
    verdict: str
    statement: str

    @property
    def reason(self) -> str:
        return self.statement.split(": stored")[0]


class MovedBlocks(Record):
    """The blocks of one model."""

    model: str
    exit_code: int
    proofs: list[BlockProof]


class BundleMove(Result):
    """`bundle_move.py`: packed on one machine, proved on another."""

    SCHEMA = "taliesin.bench.bundle-move/1"
    packed_on: Machine
    proved_on: Machine
    rows: list[MovedBlocks]

    def findings(self, file: str) -> Iterator[Finding]:
        here, there = self.packed_on, self.proved_on
        for row in self.rows:
            others = sorted({proof.reason for proof in row.proofs if proof.verdict != "exact"})
            n_exact = sum(proof.verdict == "exact" for proof in row.proofs)
            yield Line(
                "C18",
                {
                    "model": row.model,
                    "packed on": f"{here.cpu}, {here.cores} cores",
                    "proved on": f"{there.cpu}, {there.cores} cores",
                    "exact there": f"{n_exact} of {len(row.proofs)} blocks",
                    "the others": "; ".join(others) or "-",
                },
            )


class UpgradedBlock(Record):
    """A block as `taliesin rebuild --json` says it."""

    names: list[str]
    old_id: str
    id: str | None
    status: str
    reason: str
    n_tokens: Amount
    seconds: Seconds


class Rebuild(Record):
    """One run of `taliesin rebuild`, with its options and exit code."""

    options: list[str]
    exit_code: int
    schema: str
    dry_run: bool
    sound: bool
    complete: bool
    n_waiting: Amount
    seconds: Seconds
    blocks: list[UpgradedBlock]
    library: str | None = None


class Upgrade(Result):
    """`upgrade.py`: what a rebuild does after something changed."""

    SCHEMA = "taliesin.bench.upgrade/1"
    machine: Machine
    model: str
    runs: list[Rebuild]

    def findings(self, file: str) -> Iterator[Finding]:
        for run in self.runs:
            statuses = [block.status for block in run.blocks]
            rebuilt = [block for block in run.blocks if block.status == "rebuilt"]
            others = ", ".join(s for s in statuses if s not in ("verified", "rebuilt"))
            reasons = sorted({block.reason.split(": stored")[0] for block in rebuilt})
            yield Line(
                "C22",
                {
                    "model": self.model,
                    "machine": device(self.machine),
                    "options": " ".join(run.options) or "none",
                    "blocks": len(run.blocks),
                    "verified": statuses.count("verified"),
                    "rebuilt": statuses.count("rebuilt"),
                    "otherwise": others or "-",
                    "why rebuilt": "; ".join(reasons) or "-",
                    "time": duration(run.seconds),
                    "exit code": run.exit_code,
                },
            )
