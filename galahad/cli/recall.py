"""`galahad recall|transfer|isomorph|cost`: answers from the bank, other numbers, and what each way
costs.
"""

from __future__ import annotations

from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from galahad.cli.options import AllowWeak, BankPath, Ids, Threshold, chosen, open_reader
from galahad.cli.verify import read_program
from taliesin.cli.options import GpuLayers, Json, Model, Threads
from taliesin.errors import UsageError
from taliesin.host import console, durable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from galahad.answerer.answerer import BlockAnswerer
    from galahad.bank.bank import Bank
    from galahad.measure.arm import Arm, Row
    from galahad.problems.problem import Problem

commands = typer.Typer()

_OutFile = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Keep the rows here, for cost.", show_default=False),
]


class Adapt(StrEnum):
    """How a program is adapted."""

    AUTO = "auto"
    ARGUMENTS = "arguments"
    PROGRAM = "program"


@commands.command()
def recall(
    file: Annotated[
        Path, typer.Argument(metavar="PROBLEMS", help="A problem file.", show_default=False)
    ],
    bank: Annotated[
        Path | None,
        typer.Option(
            "--bank", "-b", metavar="BANK", help="Folder of the bank.", show_default=False
        ),
    ] = None,
    ids: Ids = None,
    merged: Annotated[
        bool, typer.Option("--merged", help="Ablation: all entries in one prefix.")
    ] = False,
    quote: Annotated[
        bool, typer.Option("--quote", help="Repeat the problem in the question, as --merged does.")
    ] = False,
    no_bank: Annotated[
        bool, typer.Option("--no-bank", help="Control: ask without any block.")
    ] = False,
    best_of: Annotated[
        int,
        typer.Option("--best-of", help="With --no-bank: so many sampled chains of thought.", min=0),
    ] = 0,
    card: Annotated[
        Path | None,
        typer.Option("--card", help="With --no-bank: a method card to follow.", show_default=False),
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", help="Output tokens of one free answer, at most.", min=1)
    ] = 512,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Of --best-of.", min=0.0)
    ] = 0.7,
    seed: Annotated[int, typer.Option("--seed", help="Of --best-of.", min=0)] = 0,
    threshold: Threshold = None,
    out: _OutFile = None,
    model: Model = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = 0,
    as_json: Json = False,
) -> None:
    """Route each problem to its block or to none, graft it, and read the answer back under a
    grammar.

    Example: galahad recall aime.jsonl --bank banks/aime --model qwen2.5-coder-1.5b --out
    recall.json

    What is compared with it: --merged (one prefix for all), --no-bank (the answer at once, same
    grammar), --no-bank --best-of 5 (sampled chains of thought, the majority answers), --no-bank
    --card FILE (a method card, prescribed). Recall reads what is in the block; transfer measures
    generalisation.

    Exit codes: 0 done, right or wrong, 2 contradicting options, 10-13 library, 22-23 a block that
    does not fit, 30-34 engine or model, 40 problem file, 41 no bank there, or no block of this
    model.
    """
    if (merged and no_bank) or ((best_of or card) and not no_bank) or (best_of and card):
        raise UsageError(
            "options that contradict each other",
            expected="--merged, or --no-bank [--best-of K | --card FILE]",
        )
    if not no_bank and bank is None:
        raise UsageError("no bank given", hint="--bank BANK, or --no-bank")
    from galahad.bank.bank import Bank
    from galahad.problems import load as problems
    from taliesin.ask import router

    wanted = chosen(problems.load(file).problems, ids, file)
    least = threshold if threshold is not None else router.THRESHOLD
    method = read_program(str(card)) if card else ""
    settings: dict[str, Any] = {"problems": len(wanted)}
    if out is not None:
        durable.require_output(out)  # now: an arm may take hours
    with ExitStack() as stack:
        store = stack.enter_context(Bank(bank)) if bank is not None and not no_bank else None
        reader = open_reader(model, threads, gpu_layers)
        stack.callback(reader.close)
        kind, rows = _arm(
            wanted,
            store,
            reader,
            settings,
            merged=merged,
            quote=quote,
            best_of=best_of,
            card=method,
            tokens=tokens,
            temperature=temperature,
            seed=seed,
            threshold=least,
        )
        arm = _follow(kind, reader, settings, rows, len(wanted))
    _finish(arm, out, as_json, "galahad.recall/1")


def _arm(
    wanted: Sequence[Problem],
    store: Bank | None,
    reader: BlockAnswerer,
    settings: dict[str, Any],
    *,
    merged: bool,
    quote: bool,
    best_of: int,
    card: str,
    tokens: int,
    temperature: float,
    seed: int,
    threshold: float,
) -> tuple[str, Iterator[Row]]:
    """The arm that the options ask for; its settings are added to `settings`."""
    from galahad.bank import recall
    from galahad.measure.canonical import sha256_of

    if store is not None and merged:
        settings |= {
            "max_tokens": recall.MAX_DIGIT_TOKENS,
            "grammar": recall.DIGITS,
            "opening": recall.OPENING,
        }
        return "merged", recall.merged(wanted, store, reader)
    if store is not None:
        settings |= {
            "max_tokens": recall.MAX_DIGIT_TOKENS,
            "grammar": recall.DIGITS,
            "opening": recall.OPENING,
            "threshold": threshold,
            "quote": quote,
            "entries": len(store.ids()),
        }
        return "recall", recall.routed(
            wanted, store, reader, store.router(), threshold=threshold, quote=quote
        )
    if best_of:
        settings |= {"k": best_of, "max_tokens": tokens, "temperature": temperature, "seed": seed}
        return f"best-of-{best_of}", recall.best_of(
            wanted, reader, best_of, max_tokens=tokens, temperature=temperature, seed=seed
        )
    if card:
        settings |= {"card_sha256": sha256_of(card), "max_tokens": tokens}
        return "card", recall.card(wanted, reader, card, max_tokens=tokens)
    settings |= {"max_tokens": recall.MAX_DIGIT_TOKENS, "grammar": recall.DIGITS}
    return "direct", recall.direct(wanted, reader)


def _follow(
    kind: str, reader: BlockAnswerer, settings: dict[str, Any], rows: Iterable[Row], total: int
) -> Arm:
    """Run an arm under the energy counter, with a line a problem."""
    from galahad.measure import energy
    from galahad.measure.arm import Arm

    done: list[Row] = []
    with console.progress(kind, total, "problems") as advance, energy.Meter(energy.find()) as meter:
        for row in rows:
            done.append(row)
            advance(1)
            if not console.stderr_is_terminal():
                said = "no answer" if row.answer is None else f"{row.answer}, {row.grade}"
                console.note(
                    f"{len(done)}/{total} {row.id}: {said}, {row.n_out} tokens, {row.seconds:.1f} s"
                )
    return Arm.of(kind, reader.identity(), settings, done, meter.reading())


def _finish(arm: Arm, out: Path | None, as_json: bool, schema: str) -> None:
    """Print an arm and keep it; what cannot be kept was printed."""
    try:
        _print(arm, as_json, schema)
    finally:
        if out is not None:
            arm.write(out)


def _print(arm: Arm, as_json: bool, schema: str) -> None:
    if as_json:
        console.emit_json(schema, arm.as_dict())
        return
    table = [
        (
            row.id,
            row.block or "-",
            "-" if row.answer is None else row.answer,
            row.grade,
            row.cause,
            row.n_out,
            f"{row.seconds:.1f}",
        )
        for row in arm.rows
    ]
    console.out(
        console.table(["problem", "block", "answer", "grade", "cause", "tokens", "seconds"], table)
    )
    console.note(
        f"{arm.kind}: right {arm.accuracy}; {arm.n_out} output tokens, {arm.seconds:.1f} s"
    )


@commands.command()
def transfer(
    file: Annotated[
        Path, typer.Argument(metavar="VARIANTS", help="A file of isomorph.", show_default=False)
    ],
    bank: BankPath,
    ids: Ids = None,
    adapt: Annotated[
        Adapt,
        typer.Option(
            "--adapt", help="arguments: one call under a grammar; program: all of it anew."
        ),
    ] = Adapt.AUTO,
    tokens: Annotated[
        int, typer.Option("--tokens", help="Output tokens of one program, at most.", min=32)
    ] = 900,
    threshold: Threshold = None,
    allow_weak: AllowWeak = False,
    out: _OutFile = None,
    model: Model = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = 0,
    as_json: Json = False,
) -> None:
    """Let the model adapt banked programs to other numbers, run them, and grade what they print.

    Example: galahad transfer variants.jsonl --bank banks/aime --model qwen2.5-coder-1.5b --out
    transfer.json

    --adapt auto takes arguments where the banked program has integer parameters. Each failure has
    one cause: no-block, wrong-block, no-program, constant-baked-in, constant-replaced-wrongly,
    timeout, did-not-run, wrong-number.

    Exit codes: 0 done, right or wrong, 10-13 library, 22-23 a block that does not fit, 30-34 engine
    or model, 40 not a variants file, 41 no bank there, or no block of this model, 42 no sandbox.
    """
    from galahad import sandbox
    from galahad.bank import transfer as transferring
    from galahad.bank.bank import Bank
    from galahad.problems import variants as isomorph
    from taliesin.ask import router

    variants = isomorph.load(file)
    keep = {problem.id for problem in chosen([one.problem for one in variants], ids, file)}
    variants = tuple(one for one in variants if one.problem.id in keep)
    least = threshold if threshold is not None else router.THRESHOLD
    sandbox.run("", allow_weak=allow_weak)  # refused before the model is loaded
    settings = {
        "adapt": adapt.value,
        "max_tokens": tokens,
        "threshold": least,
        "problems": len(variants),
    }
    if out is not None:
        durable.require_output(out)  # now: an arm may take hours
    with ExitStack() as stack:
        store = stack.enter_context(Bank(bank))
        reader = open_reader(model, threads, gpu_layers)
        stack.callback(reader.close)
        rows = transferring.transfer(
            variants,
            store,
            reader,
            store.router(),
            threshold=least,
            adapt=adapt.value,
            max_tokens=tokens,
            judge=lambda source: sandbox.verify(source, allow_weak=allow_weak),
        )
        arm = _follow("transfer", reader, settings, rows, len(variants))
    _finish(arm, out, as_json, "galahad.transfer/1")
    if not as_json:
        for name, proportion in transferring.by_parametric(arm.rows).items():
            console.note(f"{name}: {proportion}")


@commands.command()
def isomorph(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="PROBLEMS", help="A problem file, or a folder of templates.", show_default=False
        ),
    ],
    ids: Ids = None,
    count: Annotated[int, typer.Option("--count", help="Variants of each problem.", min=1)] = 1,
    seed: Annotated[
        int, typer.Option("--seed", help="The same seed gives the same variants.", min=0)
    ] = 0,
    programs: Annotated[
        Path | None,
        typer.Option(
            "--programs",
            help="Folder of programs by the hash of the text; ours if not given.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write the variants here, for transfer.",
            show_default=False,
        ),
    ] = None,
    wall_seconds: Annotated[
        float, typer.Option("--timeout", help="Seconds of one program.")
    ] = 10.0,
    allow_weak: AllowWeak = False,
    as_json: Json = False,
) -> None:
    """Make variants of problems: other numbers, each answer found by three programs that must
    agree.

    Example: galahad isomorph aime.jsonl --id 2025-II-15 --seed 1 --out variants.jsonl

    A draw whose programs disagree, or whose answer is not in 0..999, is rejected and said so. The
    numbers are the problem's parameters: of the template, or of the program that is kept for the
    hash of its text.

    Exit codes: 0 all have their variants, 4 some have fewer or none, 40 problem file, or no
    programs for a problem, 42 no sandbox.
    """
    from galahad import sandbox
    from galahad.problems import variants as isomorphs
    from taliesin.errors import EXIT_PARTIAL

    limits = sandbox.Limits(wall_seconds=wall_seconds, cpu_seconds=max(1, int(wall_seconds)))
    made, records = [], []
    for template, problem in _templates(file, ids, programs):
        drawn = isomorphs.draw(
            template,
            seed,
            count,
            lambda source: sandbox.run(source, limits=limits, allow_weak=allow_weak),
        )
        records.append(isomorphs.record(template, problem, seed, drawn))
        made += isomorphs.name(template, problem, seed, drawn)
        console.note(f"{problem.id}: {len(drawn.found)} found, {len(drawn.rejected)} rejected")
    if out is not None:
        durable.write_output(out, isomorphs.dumps(made))
    if as_json:
        console.emit_json("galahad.isomorph/1", {"seed": seed, "count": count, "problems": records})
    else:
        rows = [
            (
                r["origin"],
                len(r["found"]),
                len(r["rejected"]),
                ", ".join(str(f["answer"]) for f in r["found"]) or r["no_variant"],
            )
            for r in records
        ]
        console.out(console.table(["problem", "variants", "rejected", "answers"], rows))
    if any(len(r["found"]) < count for r in records):
        raise typer.Exit(EXIT_PARTIAL)


def _templates(
    file: Path, ids: Sequence[str] | None, programs: Path | None
) -> list[tuple[Any, Problem]]:
    """The problems with something to vary; those that were asked for by id must have it.

    Raises:
        SuiteError: no programs for a problem of `ids`, or for any.
    """
    from galahad.errors import SuiteError
    from galahad.problems import load as problems
    from galahad.problems import solutions, templates

    if file.is_dir():
        made = {template.id: template for template in templates.read_all(file)}
        return [(made[p.id], p) for p in chosen([t.problem() for t in made.values()], ids, file)]
    kept = solutions.read_all(programs)
    wanted = chosen(problems.load(file).problems, ids, file)
    found = [(kept[p.sha256].bind(p.problem), p) for p in wanted if p.sha256 in kept]
    missing = [p.id for p in wanted if p.sha256 not in kept]
    if not found or (ids and missing):
        raise SuiteError(
            f"no programs for {', '.join(missing[:5])}",
            where=file,
            hint="--programs DIR (docs/bank.md)",
        )
    return found


@commands.command()
def cost(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="ARM...",
            help="Files of recall and transfer, or runs of solve.",
            show_default=False,
        ),
    ],
    run: Annotated[
        Path | None,
        typer.Option("--run", help="The base run, for the system score.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Put arms side by side: accuracy, output tokens, seconds, joules, tokens per point.

    Example: galahad cost best-of-5.json recall.json merged.json transfer.json --run runs/first

    A line is named by its file and model. "fewer" and "faster" say how many times less a problem
    costs than in the first line (0.5: twice as much), and a point is one percentage point of
    accuracy at that line's tokens a problem. With --run the system score: confidently right in the
    run, and recovered by recall; beside it always the score of each transfer, which is the figure
    for generalisation.

    Exit codes: 0 printed, 2 with --run an arm that is there twice, 40 not an arm, or a recall of
    other problems than the run's, 43 not a run.
    """
    from galahad.evidence import cost as costs
    from galahad.measure import arm as arms
    from galahad.solve import log as runlog
    from galahad.solve import summary as report

    lines, recalls, transfers = [], [], []
    for path in files:
        if path.is_dir():
            lines.append(costs.of_run(f"solve {path.name}", report.summarise(runlog.read(path))))
            continue
        arm = arms.load(path)
        lines.append(costs.of_arm(f"{path.name.partition('.')[0]} {arm.engine.model}".strip(), arm))
        if arm.kind == "recall":  # an ablation recovers nothing for the system
            recalls.append(arm)
        elif arm.kind == "transfer":
            transfers.append(arm)
    score = (
        costs.system_score(report.summarise(runlog.read(run)), recalls, transfers)
        if run is not None
        else None
    )
    shown = [line.as_dict(lines[0]) for line in lines]
    if as_json:
        console.emit_json(
            "galahad.cost/1", {"arms": shown, "score": score.as_dict() if score else None}
        )
        return
    console.out(
        console.table(
            [
                "arm",
                "right",
                "tokens out",
                "a problem",
                "fewer",
                "seconds",
                "faster",
                "tokens a point",
                "joules",
            ],
            [_cost_row(one) for one in shown],
        )
    )
    if score is not None:
        console.out(f"base run: {score.base}")
        console.out(
            f"system: {score.confident_right} confident and right + "
            f"{score.recovered} recovered: {score.system}"
        )
        console.out(
            f"transfer (generalisation): {'; '.join(map(str, score.transfers)) or 'not measured'}"
        )


def _cost_row(one: dict[str, Any]) -> tuple[object, ...]:
    def ratio(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    right = one["accuracy"]
    joules = one["joules"]
    return (
        one["name"],
        f"{right['k']}/{right['n']}",
        one["tokens_out"],
        f"{one['tokens_per_problem']:.1f}",
        ratio(one["tokens_ratio"]),
        f"{one['seconds']:.1f}",
        ratio(one["seconds_ratio"]),
        "-" if one["tokens_per_point"] is None else f"{one['tokens_per_point']:.3g}",
        one["energy"] if joules is None else f"{joules['low']:.0f} to {joules['high']:.0f}",
    )
