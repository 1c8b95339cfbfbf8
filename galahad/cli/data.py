"""`galahad data check|import|show`: what is in a problem file, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from galahad.cli.options import chosen
from taliesin.cli.options import Json
from taliesin.errors import EXIT_NO, EXIT_PARTIAL, UsageError
from taliesin.host import console

if TYPE_CHECKING:
    from galahad.problems.load import Difference, Examination, Repair
    from galahad.problems.problem import Suite

commands = typer.Typer(
    help="Problem files: check them, import them, show what is in them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="JSON, JSON Lines, CSV, Parquet or Arrow, told by content; `-` is stdin.",
    ),
]


@commands.command()
def check(
    file: _File,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A clean copy: report changed numbers, words and answers."
        ),
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what is certain, into the file that --out names.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where --repair writes; never FILE itself.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Name every fault of a problem file, by row.

    Example: galahad data check aime25.jsonl --against clean.jsonl

    An error keeps `solve` from using the file, a warning does not. Nothing is changed without
    --repair, which writes another file and says what it did; rows that cannot be mended are left
    out of it.

    Exit codes: 0 clean (or all repaired), 3 faults found, 4 repaired in part, 40 not a problem
    file.
    """
    from galahad.problems import load as problems

    if repair != (out is not None):
        raise UsageError(
            "--repair and --out go together", hint="galahad data check FILE --repair --out NEW"
        )
    if out is not None and out.resolve() == file.resolve():
        raise UsageError(
            "--out is the file itself", hint="name another file: the original is evidence"
        )
    found = problems.examine(file)
    differences = problems.compare(found, problems.load(against)) if against is not None else []
    mended = problems.repair(found) if repair else None
    if mended is not None and out is not None:
        problems.write(mended.problems, out)
    if as_json:
        _emit(found, differences, mended, out)
    else:
        _print(found, differences)
        if mended is not None and out is not None:
            _print_repair(found, mended, out)
    if mended is not None:
        if mended.left or differences:
            raise typer.Exit(EXIT_PARTIAL)
    elif found.faults or differences:
        raise typer.Exit(EXIT_NO)


def _emit(
    found: Examination, differences: list[Difference], mended: Repair | None, out: Path | None
) -> None:
    from dataclasses import asdict

    fields: dict[str, object] = {
        "file": found.name,
        "form": found.form,
        "sha256": found.sha256,
        "rows": len(found.candidates),
        "clean": not (found.faults or differences),
        "usable": not found.errors,
        "faults": [{**asdict(fault), "severity": fault.severity} for fault in found.faults],
        "differences": [asdict(difference) for difference in differences],
    }
    if mended is not None:
        fields["repair"] = {
            "out": str(out),
            "rows": len(mended.problems),
            "done": list(mended.done),
            "left": [{**asdict(fault), "severity": fault.severity} for fault in mended.left],
        }
    console.emit_json("galahad.data.check/1", fields)


def _print(found: Examination, differences: list[Difference]) -> None:
    if found.faults:
        headers = ["row", "id", "severity", "fault", "detail"]
        rows = [[f.row or "file", f.id, f.severity, f.kind, f.detail] for f in found.faults]
        console.out(console.table(headers, rows))
    if differences:
        missing = [d.reference_id or "" for d in differences if d.kind == "missing"]
        rows = [
            [d.row or "-", d.id or "-", d.reference_id or "-", d.kind, d.detail]
            for d in differences
            if d.kind != "missing"
        ]
        if rows:
            console.out(console.table(["row", "id", "reference", "difference", "detail"], rows))
        if missing:
            console.out(f"missing, {len(missing)} only in the reference: {', '.join(missing)}")
    errors = len(found.errors)
    console.note(
        f"{found.name}: {found.form}, {console.count(len(found.candidates), 'row')}, "
        f"{console.count(errors, 'error')}, "
        f"{console.count(len(found.faults) - errors, 'warning')}, "
        f"{console.count(len(differences), 'difference')}"
    )


def _print_repair(found: Examination, mended: Repair, out: Path) -> None:
    for line in mended.done:
        console.out(f"repaired: {line}")
    for fault in mended.left:
        console.out(
            f"left: {f'row {fault.row} ({fault.id})' if fault.row else 'file'}: "
            f"{fault.kind}, {fault.detail}"
        )
    console.note(f"{out}: {len(mended.problems)} of {len(found.candidates)} rows written")


@commands.command("import")
def import_(
    file: _File,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write; by default stdout.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a problem file as our own JSON Lines: id, problem, answer, sha256.

    Example: galahad data import test.parquet --out aime25.jsonl

    FILE may also be a folder of problem templates. A file with errors is refused; solutions are
    never carried over.

    Exit codes: 0 written, 2 --json without --out, 40 not a problem file, or one with errors.
    """
    from galahad.problems import load as problems

    if as_json and out is None:
        raise UsageError("--json needs --out: the problems themselves would go to stdout")
    suite = problems.load(file)
    _warn(suite)
    if out is None:
        for problem in suite.problems:
            console.out(problems.line(problem))
        return
    problems.write(suite.problems, out)
    if as_json:
        fields = {"file": suite.name, "form": suite.form, "sha256": suite.sha256, "out": str(out)}
        console.emit_json("galahad.data.import/1", {**fields, "rows": len(suite.problems)})
    console.note(
        f"{out}: {console.count(len(suite.problems), 'problem')} from {suite.name} ({suite.form})"
    )


def _warn(suite: Suite) -> None:
    for fault in suite.warnings:
        console.warn(
            f"{suite.name}: {f'row {fault.row} ({fault.id}): ' if fault.row else ''}"
            f"{fault.kind}, {fault.detail}"
        )


@commands.command()
def show(
    file: _File,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="Only this problem, in full; repeatable."),
    ] = None,
    gold: Annotated[bool, typer.Option("--gold", help="Show the answers too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many problems.")] = 1000,
    as_json: Json = False,
) -> None:
    """List the problems of a file: id, hash, beginning of the text; with --id, the whole text.

    Example: galahad data show aime25.jsonl --id I-3 --gold

    Exit codes: 0 shown, 2 no such id, 40 not a problem file, or one with errors.
    """
    from galahad.problems import load as problems

    suite = problems.load(file)
    shown = chosen(suite.problems, ids, file)[: None if ids else limit]
    if as_json:
        records = [
            {k: v for k, v in problem.as_dict().items() if gold or k != "answer"}
            for problem in shown
        ]
        fields = {
            "file": suite.name,
            "form": suite.form,
            "sha256": suite.sha256,
            "rows": len(suite.problems),
        }
        console.emit_json("galahad.data.show/1", {**fields, "problems": records})
        return
    if ids:
        for problem in shown:
            answer = f", answer {problem.answer}" if gold else ""
            console.out(f"{problem.id} ({problem.sha256[:12]}{answer})\n{problem.problem}\n")
        return
    headers = ["id", "sha256", *(["answer"] if gold else []), "problem"]
    rows = [
        [p.id, p.sha256[:12], *([p.answer] if gold else []), _beginning(p.problem)] for p in shown
    ]
    console.out(console.table(headers, rows))
    n_problems, n_warnings = (
        console.count(len(suite.problems), "problem"),
        console.count(len(suite.warnings), "warning"),
    )
    console.note(f"{suite.name}: {suite.form}, {n_problems}, {n_warnings}")


def _beginning(text: str, width: int = 72) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "\u2026"
