"""`galahad report`: one run, or several, summed up for a reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from taliesin.cli.options import Json
from taliesin.errors import UsageError
from taliesin.host import console, durable

commands = typer.Typer()


@commands.command()
def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN...", help="Folders that solve made.", show_default=False),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write one HTML page.", show_default=False),
    ] = None,
    with_: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            metavar="FILE",
            help="With --html: what another command wrote with --json or --out, such as bench, "
            "verify, cost or recall.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the bootstrap, for two runs.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Sum up runs as Markdown, or as one HTML page; of two, say what changed and whether it is more
    than noise.

    Example: galahad report runs/first runs/second --html report.html

    Accuracy with Wilson intervals, confidence against grades, what did not work, tokens and energy,
    every problem,
    versions and hashes. Two runs are compared pair by pair: McNemar's exact test, Wilcoxon and a
    bootstrap. The page has no script and no external asset. Three or more runs are listed without a
    comparison; a page can hold results alone.

    Exit codes: 0 printed, 2 a file that is no raw result, or no such folder, 13 not written, 20 a
    raw result lacks a field, 43 no run there, or a damaged one.
    """
    from galahad.evidence import compare
    from galahad.solve import log as runlog
    from galahad.solve import markdown
    from galahad.solve import summary as report

    folders = folders or []
    if not folders and (html is None or not with_ or as_json):
        raise UsageError("nothing to report", expected="RUN..., or --html FILE with --with RESULT")
    summaries = [report.summarise(runlog.read(folder)) for folder in folders]
    compared = None
    if len(summaries) == 2:
        try:
            compared = compare.compare(summaries[0], summaries[1], seed)
        except UsageError as error:
            console.warn(f"{error.message}: no comparison")
    if with_ and html is None:
        raise UsageError("--with needs --html")
    if html is not None:
        from galahad.evidence import page

        text = page.page(summaries, compared, [(file.name, _raw(file)) for file in with_ or []])
        durable.write_output(html, text, mode=0o666, errors="backslashreplace")
        console.note(f"{html} is written")
    if as_json:
        runs = [
            {"run": str(folder), **summary.as_dict()}
            for folder, summary in zip(folders, summaries, strict=True)
        ]
        more: dict[str, Any] = {"comparison": compared.as_dict()} if compared else {}
        console.emit_json(
            "galahad.report/1", {**runs[0], **({"others": runs[1:]} if runs[1:] else {}), **more}
        )
    elif html is None:
        if compared is not None:
            console.out(compare.markdown(compared) + "\n")
        console.out("\n\n".join(map(markdown.markdown, summaries)))


def _raw(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes(), parse_constant=_refuse)
    except OSError as error:
        raise UsageError("the raw result cannot be read", got=error.strerror, where=path) from error
    except (ValueError, RecursionError) as error:
        raise UsageError("not a raw result", got=error, where=path) from error
    if not isinstance(document, dict):
        raise UsageError("not a raw result", expected="one JSON object", where=path)
    return document


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number in JSON")
