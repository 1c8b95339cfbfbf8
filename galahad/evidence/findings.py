"""What a raw result says: sentences, and lines of tables, each under the claim that it speaks of.

A result is known by its `schema`. Each type that the toolkit writes brings its own reader
(`taliesin.host.findings.Result`); the registry is built from the types, and `galahad report` and
docs/reproduction.md are made of what they say. Deliberately computes nothing that is not in the
file, sums and ratios of its own figures aside.
"""

from __future__ import annotations

from typing import Any

from galahad.bank.results import AddResult, LintResult
from galahad.bank.routing import RoutingFigures
from galahad.evidence.cost import CostResult
from galahad.evidence.raw import exactness, moves, others, routing, speed
from galahad.livebench.records import Result as LiveBenchResult
from galahad.measure.arm import Arm, RecallArm, TransferArm
from galahad.problems.variants import VariantsResult
from galahad.solve.summary import ReportFigures, RunFigures
from taliesin.errors import FormatError
from taliesin.host import records
from taliesin.host.findings import Finding, Line, Result, Said
from taliesin.measure.results import BenchResult, NeedleResult
from taliesin.prove.report import ShiftReport, VerifyReport, VerifyReportV1

__all__ = ["READERS", "Document", "Finding", "Line", "Said", "of", "read"]

Document = dict[str, Any]
"""One raw result, as JSON has it."""

_TYPES: tuple[type[Result], ...] = (
    AddResult,
    Arm,
    BenchResult,
    CostResult,
    LintResult,
    LiveBenchResult,
    NeedleResult,
    RecallArm,
    ReportFigures,
    RoutingFigures,
    RunFigures,
    ShiftReport,
    TransferArm,
    VariantsResult,
    VerifyReport,
    VerifyReportV1,
    exactness.ExactnessMatrix,
    exactness.ShiftResidual,
    exactness.VerifyGpu,
    moves.BundleMove,
    moves.Upgrade,
    others.Peers,
    others.ServerTable,
    routing.RouterCalibration,
    speed.GraftMemory,
    speed.LibraryList,
    speed.PrefixCache,
    speed.RestoreSpeed,
    speed.SandboxOverhead,
    speed.SaveSpeed,
)
READERS: dict[str, type[Result]] = {kind.SCHEMA: kind for kind in _TYPES}


def read(document: Document, file: str) -> Result | None:
    """The result as the type of its schema; None of a schema that has no reader.

    Raises:
        FormatError: a field is not as the schema says; it is named.
    """
    kind = READERS.get(str(document.get("schema")))
    if kind is None:
        return None
    fields = document
    if "schema" not in kind.__struct_fields__:
        fields = {name: value for name, value in document.items() if name != "schema"}
    return records.convert(fields, kind, what="a raw result", where=file, error=FormatError)


def of(document: Document, file: str) -> list[Finding]:
    """What the result says; nothing of a schema that has no reader. `file` is the name that it has
    among the others. Raises as `read`.
    """
    result = read(document, file)
    return [] if result is None else list(result.findings(file))
