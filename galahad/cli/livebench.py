"""`galahad livebench`: old questions as a library, newer ones as the test."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from taliesin import console
from taliesin.cli.options import GpuLayers, Json, Model, Threads, default_settings
from taliesin.errors import EXIT_PARTIAL, StoreFull

commands = typer.Typer()


@commands.command()
def livebench(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="question.jsonl files of LiveBench.", show_default=False)
    ],
    library_before: Annotated[
        str, typer.Option("--library-before", metavar="DATE", help="Questions released before are the library.")
    ],
    sample: Annotated[int, typer.Option("--sample", help="Questions of each task and kind, at most.", min=1)] = 10,
    examples: Annotated[int, typer.Option("--examples", help="Worked examples in a task's block.", min=1)] = 4,
    tokens: Annotated[int, typer.Option("--tokens", help="Output tokens of one answer, at most.", min=1)] = 512,
    seed: Annotated[int, typer.Option("--seed", help="Of the sample.", min=0)] = 0,
    split_only: Annotated[bool, typer.Option("--split-only", help="Say how the files split; ask nothing.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Keep scores and grades here.", show_default=False)
    ] = None,
    model: Model = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = 0,
    as_json: Json = False,
) -> None:
    """Ask newer questions behind a block of older ones, and without it.

    Example: galahad livebench zebra_puzzle.jsonl --library-before 2024-11-25 --sample 10 --out lb.json

    Transfer is the score on newer questions, replay that on the library's own, examples included; each with and without
    the block, greedy, and graded by the format that the task's prompt asks for. No id, text or template is on both
    sides. Tasks: math_comp, zebra_puzzle, web_of_lies_v2. The files stay where they are: results hold ids and grades.

    Exit codes: 0 done, 2 not a date, 4 done, but no newer question was left to test, 13 not written, 31 no such model,
    40 not a question file.
    """
    from galahad import livebench as bench

    questions = bench.read(files)
    parts = bench.split(questions, library_before)
    chosen = bench.sample(parts.library, examples, seed)
    known = {question.task for question in chosen}
    kinds = {
        "replay": bench.sample(parts.library, sample, seed),
        "transfer": [q for q in bench.sample(parts.test, sample, seed) if q.task in known],
    }
    fields: dict[str, Any] = {
        "library_before": library_before,
        "n_library": len(parts.library),
        "n_test": len(parts.test),
        "n_left_out": len(parts.left_out),
        "seed": seed,
        "examples": examples,
        "tokens": tokens,
    }
    if not split_only:
        fields |= _asked(kinds, chosen, tokens, model, threads, gpu_layers)
    if out is not None:
        try:
            out.write_text(json.dumps({"schema": bench.SCHEMA, **fields}, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise StoreFull("the result cannot be written", got=error.strerror, where=out) from error
    if as_json:
        console.emit_json(bench.SCHEMA, fields)
    else:
        _print(fields)
    if not parts.test:
        console.note("no newer question is left to test: another date, or files with newer releases")
        raise typer.Exit(EXIT_PARTIAL)


def _asked(
    kinds: dict[str, list[Any]],
    examples: list[Any],
    tokens: int,
    model: str | None,
    threads: int | None,
    gpu_layers: int,
) -> dict[str, Any]:
    from galahad import livebench as bench
    from taliesin import models
    from taliesin.engine import Engine
    from taliesin.library import Library

    name = model or models.DEFAULT
    found: dict[str, Any] = {"model": Path(name).name}
    with (
        tempfile.TemporaryDirectory(prefix="galahad-livebench-") as folder,
        Library(Path(folder) / "library") as store,
        Engine(name, settings=default_settings(threads, None), gpu_layers=gpu_layers) as engine,
        console.progress("questions", sum(map(len, kinds.values())), "questions") as advance,
    ):
        found["model_sha256"] = engine.model_sha256
        for kind, questions in kinds.items():
            answers = []
            for answer in bench.ask(engine, store, examples, questions, tokens):
                answers.append(answer)
                advance(1)
            found[kind] = bench.scores(answers)
            found[f"{kind}_answers"] = [answer._asdict() for answer in answers]
    return found


def _print(fields: dict[str, Any]) -> None:
    console.note(
        f"{fields['n_library']} questions are the library, {fields['n_test']} the test, {fields['n_left_out']} left out "
        "because their template or text is in the library"
    )
    rows = [
        (kind, task, f"{score['right']}/{score['n']}", f"{score['mean_share']:.2f}",
         f"{score['without']['right']}/{score['n']}", f"{score['without']['mean_share']:.2f}", f"{score['paired']['p']:.3g}")
        for kind in ("transfer", "replay") for task, score in fields.get(kind, {}).items()
    ]  # fmt: skip
    if rows:
        headers = ["kind", "task", "right", "share", "right without", "share without", "McNemar p"]
        console.out(console.table(headers, rows))
