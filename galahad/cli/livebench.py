"""`galahad livebench`: old questions as a library, newer ones as the test."""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from galahad.cli.options import open_reader
from taliesin.cli.options import GpuLayers, Json, Model, Threads
from taliesin.errors import EXIT_PARTIAL, UsageError
from taliesin.host import console, records

if TYPE_CHECKING:
    from galahad.answerer.answerer import BlockAnswerer
    from galahad.livebench.records import ArmScore, Kind, Result
    from galahad.livebench.rules import Question

    Plan = dict[Kind, list[Question]]

commands = typer.Typer()


@commands.command()
def livebench(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="question.jsonl files of LiveBench.", show_default=False
        ),
    ],
    library_before: Annotated[
        str,
        typer.Option(
            "--library-before", metavar="DATE", help="Questions released before are the library."
        ),
    ],
    sample: Annotated[
        int, typer.Option("--sample", help="Questions of each task and kind, at most.", min=1)
    ] = 10,
    examples: Annotated[
        int, typer.Option("--examples", help="Worked examples in a task's block.", min=1)
    ] = 4,
    tokens: Annotated[
        int, typer.Option("--tokens", help="Output tokens of one answer, at most.", min=1)
    ] = 512,
    seed: Annotated[int, typer.Option("--seed", help="Of the sample.", min=0)] = 0,
    split_only: Annotated[
        bool, typer.Option("--split-only", help="Say how the files split; ask nothing.")
    ] = False,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            "--max-seconds",
            min=0,
            help="Ask nothing more after that long; --out goes on there.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Keep scores and grades here, and go on with what is there.",
            show_default=False,
        ),
    ] = None,
    model: Model = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = 0,
    as_json: Json = False,
) -> None:
    """Ask newer questions behind a block of older ones, and without it.

    Example: galahad livebench zebra_puzzle.jsonl --library-before 2024-11-25 --sample 10 --out
    lb.json

    Transfer is the score on newer questions, replay that on the library's own, examples included;
    each with and without the block, greedy. "right" is graded by the form that the task's prompt
    asks for, "score" as LiveBench's own scorer
    does, which accepts more. No id, text or template is on both sides. Tasks: math_comp,
    zebra_puzzle, web_of_lies_v2. --out is written after every question, and the same command asks
    none again; it holds ids, grades, tokens and hashes, and no text of a question or an answer.

    Exit codes: 0 done, 2 not a date, one with no question before it, or --out of other settings, 4
    --max-seconds came first, or no newer question was left to test; 13 not written, 31 no such
    model, 33 a question that does not fit, 40 not a question file, or --out is no result.
    """
    from galahad.livebench import run as bench
    from galahad.livebench.records import Result
    from taliesin.host.durable import require_output

    if out is not None and not split_only:
        require_output(out)
    questions = bench.read(files)
    parts = bench.split(questions, library_before)
    if not parts.library and not split_only:
        first = min(question.released for question in questions)
        raise UsageError(
            "no question is released before that date",
            expected=f"after {first}",
            got=library_before,
        )
    chosen = bench.sample(parts.library, examples, seed)
    known = {question.task for question in chosen}
    plan: Plan = {
        "transfer": [q for q in bench.sample(parts.test, sample, seed) if q.task in known],
        "replay": bench.sample(parts.library, sample, seed),
    }
    split = {
        "n_library": len(parts.library),
        "n_test": len(parts.test),
        "n_left_out": len(parts.left_out),
    }
    settings = {
        "library_before": library_before,
        **split,
        "seed": seed,
        "examples": examples,
        "tokens": tokens,
        "questions_sha256": bench.questions_sha256(questions),
        "documents_sha256": bench.documents_sha256(chosen),
    }
    console.note(
        f"{len(parts.library)} questions are the library, {len(parts.test)} the test, "
        f"{len(parts.left_out)} left out "
        "because their template or text is in the library"
    )
    found: Result | None = None
    if not split_only:
        with ExitStack() as stack:
            reader = open_reader(model, threads, gpu_layers)
            stack.callback(reader.close)
            found = _asked(plan, chosen, reader, settings, out, max_seconds)
    if as_json:
        fields = {"settings": settings} if found is None else records.plain(found)
        console.emit_json(Result.SCHEMA, {k: v for k, v in fields.items() if k != "schema"})
    elif found is not None:
        console.out(_table(found))
    if not parts.test:
        console.note(
            "no newer question is left to test: another date, or files with newer releases"
        )
    if not parts.test or (found is not None and not found.complete):
        raise typer.Exit(EXIT_PARTIAL)


def _asked(
    plan: Plan,
    examples: list[Question],
    reader: BlockAnswerer,
    settings: dict[str, Any],
    out: Path | None,
    max_seconds: float | None,
) -> Result:
    """The result, written to `out` after every answer; what is there already is not asked again."""
    from galahad.livebench import run as bench
    from galahad.livebench.records import RunSettings
    from taliesin.host.durable import write_output
    from taliesin.store.library import Library

    whole = records.convert(
        {**reader.identity(), **settings}, RunSettings, what="the settings of this run"
    )
    answers: bench.Answers = {"transfer": [], "replay": []}
    if out is not None:
        answers = bench.resume(out, whole)
    n_planned = sum(map(len, plan.values()))
    planned = {kind: {question.id for question in questions} for kind, questions in plan.items()}
    answers = {
        kind: [one for one in own if one.id in planned[kind]] for kind, own in answers.items()
    }

    def asked() -> Result:
        found = bench.result(whole, answers, n_planned)
        if out is not None:
            write_output(out, json.dumps(records.plain(found), indent=1) + "\n")
        return found

    started = time.monotonic()
    found = asked()
    with (
        tempfile.TemporaryDirectory(prefix="galahad-livebench-") as folder,
        Library(Path(folder) / "library") as store,
        console.progress("questions", n_planned, "questions") as advance,
    ):
        advance(sum(map(len, answers.values())))
        for kind, questions in plan.items():
            done = {answer.id for answer in answers[kind]}
            left = [question for question in questions if question.id not in done]
            for answer in bench.ask(reader, store, examples, left, whole.tokens):
                answers[kind].append(answer)
                found = asked()
                advance(1)
                if max_seconds is not None and time.monotonic() - started >= max_seconds:
                    return found
    return found


def _table(found: Result) -> str:
    rows = [
        (
            kind,
            task,
            _right(score),
            f"{score.mean_score:.1%}",
            score.cut,
            _right(score.without),
            f"{score.without.mean_score:.1%}",
            score.without.cut,
            f"{score.paired.p:.3g}",
        )
        for kind, scores in (("transfer", found.transfer), ("replay", found.replay))
        for task, score in scores.items()
    ]
    headers = [
        "kind",
        "task",
        "right (Wilson 95 %)",
        "score",
        "cut",
        "without",
        "score",
        "cut",
        "McNemar p",
    ]
    return console.table(headers, rows)


def _right(score: ArmScore) -> str:
    return f"{score.right}/{score.n} ({score.low:.0%} to {score.high:.0%})"
