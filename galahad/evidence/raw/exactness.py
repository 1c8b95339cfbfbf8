"""Raw results on exactness: many lengths and models, a GPU, and a graft that was moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta

from taliesin.host.findings import (
    Amount,
    Figure,
    Finding,
    Machine,
    Result,
    Seconds,
    recipe_of,
)
from taliesin.host.records import Record
from taliesin.prove.report import (
    ShiftRow,
    VerifyReportV1,
    equal_vectors,
    moved,
)


class EmbeddedReport(VerifyReportV1):
    """A report of the verifier inside another result: of version 1 or 2."""

    level: str = ""


class MatrixRow(Record):
    """One length of one model."""

    model: str
    model_sha256: str
    n_tokens: Amount
    seed: int
    recipe_id: str
    seconds: Seconds
    load_average: tuple[Figure, ...] | None
    report: EmbeddedReport


class ExactnessMatrix(Result):
    """`exactness_matrix.py`: models by lengths."""

    SCHEMA = "taliesin.bench.exactness-matrix/1"
    machine: Machine
    query_tokens: tuple[Amount, ...]
    steps: Amount
    rows: list[MatrixRow]

    def findings(self, file: str) -> Iterator[Finding]:
        by_model: dict[str, list[EmbeddedReport]] = {}
        for row in self.rows:
            by_model.setdefault(row.model, []).append(row.report)
        for model, reports in by_model.items():
            yield from equal_vectors(model, reports)


class GpuReport(EmbeddedReport, kw_only=True):
    """A report with what was chosen for it."""

    fresh_trials: Amount
    seed: int
    seconds: Seconds


class VerifyGpu(Result):
    """`verify_gpu.py`: one model on a GPU, and grafts that were broken on purpose."""

    SCHEMA = "taliesin.bench.verify-gpu/1"
    machine: Machine
    query_tokens: tuple[Amount, ...]
    steps: Amount
    rows: Annotated[list[GpuReport], Meta(min_length=1, description="a report at least")]

    def findings(self, file: str) -> Iterator[Finding]:
        yield from equal_vectors(recipe_of(self.rows[0].recipe).model, self.rows)


class ShiftResidual(Result):
    """`shift_residual.py`: `taliesin shift` on more queries."""

    SCHEMA = "taliesin.bench.shift-residual/1"
    machine: Machine
    n_tokens: Amount
    text: str | None
    recipe: dict[str, Any]
    shifts: list[ShiftRow]

    def findings(self, file: str) -> Iterator[Finding]:
        yield from moved(self.recipe, self.machine, self.shifts)
