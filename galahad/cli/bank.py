"""`galahad bank add|list|show|check|lint|route|rm`: what the bank holds, how it got in, and whether
it still holds.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from galahad.cli.options import AllowWeak, BankPath, Ids, Threshold, chosen, open_reader
from galahad.cli.verify import read_program
from taliesin.cli.options import GpuLayers, Json, Model, Threads, Yes, confirm
from taliesin.errors import EXIT_NO, EXIT_PARTIAL, UsageError
from taliesin.host import console, records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from galahad.answerer.answerer import BlockAnswerer
    from galahad.bank.bank import Bank
    from galahad.bank.entry import Entry, Need
    from galahad.bank.proposals import Proposal
    from galahad.problems.problem import Problem
    from galahad.solve.log import Run

commands = typer.Typer(
    help="Verified solutions as KV blocks: add, list, show, check, lint, route, rm.",
    no_args_is_help=True,
)


@commands.command()
def add(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|PROBLEMS",
            help="A run of solve, or a problem file or folder.",
            show_default=False,
        ),
    ],
    bank: BankPath,
    problems_file: Annotated[
        Path | None,
        typer.Option(
            "--problems", help="With RUN: the problem file it was made of.", show_default=False
        ),
    ] = None,
    ids: Ids = None,
    program: Annotated[
        str | None,
        typer.Option(
            "--program", help="A Python file for the one problem; - is stdin.", show_default=False
        ),
    ] = None,
    answer: Annotated[
        int | None,
        typer.Option(
            "--answer", help="What the program must print; the problem's gold.", show_default=False
        ),
    ] = None,
    programs: Annotated[
        Path | None,
        typer.Option(
            "--programs",
            help="Folder of programs by the hash of the problem's text; ours if not given.",
            show_default=False,
        ),
    ] = None,
    from_runs: Annotated[
        list[Path] | None,
        typer.Option("--from", help="Take programs from this run, too; can be repeated."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", help="The run that tells what the model solves by itself.", show_default=False
        ),
    ] = None,
    measure: Annotated[
        int,
        typer.Option(
            "--measure",
            help="Without a run: ask the model once, with at most so many tokens.",
            min=0,
        ),
    ] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Also what the model solves, or was not measured on.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of another solution of that id.")
    ] = False,
    model: Model = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = 0,
    allow_weak: AllowWeak = False,
    as_json: Json = False,
) -> None:
    """Verify programs in the sandbox and bank them, one KV block for each problem.

    Example: galahad bank add runs/first --problems aime.jsonl --bank banks/aime --model
    qwen2.5-coder-1.5b

    Only a program that printed the answer in the sandbox enters, and only for a problem that this
    model was measured to
    fail or to be uncertain about: by a run of it (RUN or --run), or by --measure. Programs come
    from --program, from RUN and --from (more samples, or a stronger model by URL), else from
    --programs. The same again with another --model adds that model's blocks.

    Exit codes: 0 all are in, or not needed, 4 some are not, 2 usage, 11-13 library, 30-34 engine or
    model, 40 problem file, 41 the one problem was refused, 42 no sandbox, 43 run.
    """
    from galahad.bank.bank import Bank
    from galahad.problems import load as problems
    from galahad.solve import log as runlog

    is_run = (source / runlog.LOG).is_file()
    if is_run and problems_file is None:
        raise UsageError(
            "a run holds no texts", hint="--problems FILE, the problem file it was made of"
        )
    suite = problems.load(problems_file if is_run and problems_file is not None else source)
    runs = [runlog.read(path) for path in ([source] if is_run else []) + ([run] if run else [])]
    others = [runlog.read(path) for path in from_runs or ()]
    wanted = chosen(suite.problems, ids, source)
    if is_run:
        wanted = [p for p in wanted if p.sha256 in runs[0].header.suite.problems.values()]
    if (program is not None or answer is not None) and len(wanted) != 1:
        raise UsageError(
            "--program and --answer are for one problem",
            got=f"{len(wanted)} problems",
            hint="--id ID",
        )
    if answer is not None and answer != wanted[0].answer:
        raise UsageError(
            "the answer is not the problem's gold",
            expected=wanted[0].answer,
            got=answer,
            where=wanted[0].id,
        )
    propose = _proposals(source, program, programs, [*runs, *others])
    verify = _verifier(allow_weak)
    with ExitStack() as stack:
        reader = open_reader(model, threads, gpu_layers)
        stack.callback(reader.close)
        store = stack.enter_context(Bank(bank, create=True))
        advance = stack.enter_context(console.progress("banking", len(wanted), "problems"))
        lines = []
        for problem in wanted:
            need = _need(problem, runs, reader, measure, needed=not force)
            lines.append(
                _admit(
                    store,
                    problem,
                    propose,
                    need,
                    reader,
                    verify,
                    force=force,
                    replace=replace,
                    alone=len(wanted) == 1,
                )
            )
            advance(1)
    if as_json:
        console.emit_json("galahad.bank.add/1", {"bank": str(bank), "problems": lines})
    else:
        rows = [(one["id"], one["status"], one["n_tokens"] or "-", one["why"]) for one in lines]
        console.out(console.table(["problem", "status", "tokens", "why"], rows))
    if any(one["status"] == "refused" for one in lines):
        raise typer.Exit(EXIT_PARTIAL)


def _proposals(
    source: Path, program: str | None, programs: Path | None, runs: Sequence[Run]
) -> Callable[[Problem], Proposal | None]:
    """From the most to the least particular."""
    from galahad.bank import proposals as sources
    from galahad.problems import solutions, templates

    if program is not None:
        given = sources.of_person(read_program(program), Path(program).name)
        return lambda _problem: given
    kept = solutions.read_all(programs)
    made = (
        templates.read_all(source)
        if source.is_dir() and not (source / "run.jsonl").exists()
        else ()
    )

    def propose(problem: Problem) -> Proposal | None:
        for run in runs:
            if found := sources.of_run(problem, run):
                return found
        return sources.of_solutions(problem, kept) or sources.of_templates(problem, made)

    return propose


def _verifier(allow_weak: bool) -> Callable[[str, int], Any]:
    from galahad import sandbox

    return lambda program, answer: sandbox.verify(program, answer, allow_weak=allow_weak)


def _need(
    problem: Problem, runs: Sequence[Run], reader: BlockAnswerer, tokens: int, *, needed: bool
) -> Need:
    from galahad.bank import proposals as sources
    from galahad.bank.entry import Need

    for run in runs:
        if sources.is_of_model(run, reader.model_sha256):
            told = sources.need_of_run(problem, run)
            if told.solved != "not-measured":
                return told
    if tokens:
        return sources.measure(problem, reader, max_tokens=tokens)
    return Need(solved="not-measured", by="nobody" if needed else "--force")


def _admit(
    store: Bank,
    problem: Problem,
    propose: Callable[[Problem], Proposal | None],
    need: Need,
    reader: BlockAnswerer,
    verify: Callable[[str, int], Any],
    *,
    force: bool,
    replace: bool,
    alone: bool,
) -> dict[str, Any]:
    """What became of one problem; a refusal is an exception where it is the only one."""
    from galahad.bank.entry import require_need, verified
    from galahad.errors import BankError

    line: dict[str, Any] = {
        "id": problem.id,
        "status": "banked",
        "n_tokens": None,
        "why": f"{need.solved}, {need.by}",
    }
    if need.solved == "solved" and not force and not alone:
        return {**line, "status": "not needed"}
    try:
        require_need(problem.id, need, force=force)
        proposal = propose(problem)
        if proposal is None:
            raise BankError(
                f"no program for {problem.id}",
                hint="--program FILE, or --from RUN of a stronger model",
            )
        entry = verified(problem, proposal.program, proposal.provenance, verify)
        entry = store.add(entry, reader, need, replace_existing=replace)
    except (BankError, UsageError) as error:
        if alone:
            raise
        return {**line, "status": "refused", "why": error.message}
    for finding in entry.findings:
        console.warn(f"{entry.id}: {finding}")
    return {
        **line,
        "n_tokens": entry.blocks[reader.model_sha256].n_tokens,
        "parametric": entry.parametric,
        "provenance": records.plain(entry.provenance),
        "verification": records.plain(entry.verification),
    }


@commands.command("list")
def list_(bank: BankPath, as_json: Json = False) -> None:
    """One line for each solution.

    Example: galahad bank list --bank banks/aime

    Exit codes: 0 printed, 41 no bank there, or a damaged entry.
    """
    from galahad.bank.bank import Bank

    with Bank(bank) as store:
        entries, set_aside = store.entries(), store.set_aside_ids()
    if as_json:
        console.emit_json(
            "galahad.bank.list/1",
            {
                "bank": str(bank),
                "entries": [_brief(entry) for entry in entries],
                "set_aside": list(set_aside),
            },
        )
        return
    rows = [
        (
            entry.id,
            entry.answer,
            "parametric" if entry.parametric else "baked in",
            entry.source,
            entry.verification.level,
            ", ".join(f"{b.model} ({b.n_tokens})" for b in entry.blocks.values()) or "-",
        )
        for entry in entries
    ]
    console.out(
        console.table(
            ["problem", "answer", "program", "source", "sandbox", "blocks (tokens)"], rows
        )
    )
    if set_aside:
        console.note(f"set aside by galahad rebuild: {', '.join(set_aside)} (quarantine/ says why)")


def _brief(entry: Entry) -> dict[str, Any]:
    """An entry without its texts."""
    return {
        name: value for name, value in entry.fields().items() if name not in ("problem", "program")
    }


@commands.command()
def show(
    id_: Annotated[
        str, typer.Argument(metavar="ID", help="A problem of the bank.", show_default=False)
    ],
    bank: BankPath,
    document: Annotated[
        bool, typer.Option("--document", help="Only the text that the block holds.")
    ] = False,
    as_json: Json = False,
) -> None:
    """A solution with its provenance: problem, program, answer, verdict, need, blocks.

    Example: galahad bank show aime-2025-09 --bank banks/aime

    Exit codes: 0 printed, 41 no such entry, or a damaged one.
    """
    from galahad.bank.bank import Bank

    with Bank(bank) as store:
        entry = store.get(id_)
    if as_json:
        console.emit_json("galahad.bank.show/1", {**entry.fields(), "document": entry.document()})
        return
    if document:
        console.out(entry.document())
        return
    console.out(entry.document())
    console.out()
    for name in (
        "sha256",
        "program_sha256",
        "parametric",
        "verification",
        "provenance",
        "need",
        "blocks",
        "created",
    ):
        console.out(f"{name}: {console.json_line(entry.fields()[name])}")


@commands.command()
def check(
    bank: BankPath,
    run_programs: Annotated[
        bool, typer.Option("--run/--no-run", help="Run the programs again.")
    ] = True,
    certify: Annotated[
        bool, typer.Option("--certify", help="Also recompute the certificates of --model's blocks.")
    ] = False,
    model: Model = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = 0,
    allow_weak: AllowWeak = False,
    as_json: Json = False,
) -> None:
    """Verify everything again: entries, texts, programs in the sandbox, every byte of the blocks.

    Example: galahad bank check --bank banks/aime --certify --model qwen2.5-coder-1.5b

    Exit codes: 0 all as it must be, 3 something is not, 30-34 engine or model, 41 no bank there, 42
    no sandbox.
    """
    from galahad.bank import check as checking
    from galahad.bank.bank import Bank

    with ExitStack() as stack:
        store = stack.enter_context(Bank(bank))
        reader = None
        if certify:
            reader = open_reader(model, threads, gpu_layers)
            stack.callback(reader.close)
        troubles = checking.check(store, _verifier(allow_weak) if run_programs else None, reader)
        n_entries = len(store.ids())
    if as_json:
        console.emit_json(
            "galahad.bank.check/1",
            {
                "bank": str(bank),
                "n_entries": n_entries,
                "troubles": records.plain(troubles),
            },
        )
    else:
        for trouble in troubles:
            console.out(f"{trouble.what}: {trouble.kind}: {trouble.detail}")
        console.note(f"{console.count(n_entries, 'entry')}, {len(troubles)} found wrong")
    if troubles:
        raise typer.Exit(EXIT_NO)


@commands.command()
def lint(
    bank: BankPath,
    ids: Ids = None,
    rewrite: Annotated[
        bool,
        typer.Option(
            "--rewrite", help="Ask --model for a parametric form, and keep it if it verifies."
        ),
    ] = False,
    tokens: Annotated[
        int, typer.Option("--tokens", help="Output tokens of one rewrite, at most.", min=32)
    ] = 900,
    model: Model = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = 0,
    allow_weak: AllowWeak = False,
    as_json: Json = False,
) -> None:
    """Say which programs hold numbers of their problem inside the logic: those recall, but do not
    transfer.

    Example: galahad bank lint --bank banks/aime --rewrite --model qwen2.5-coder-1.5b

    A rewrite takes the old program's place only if the sandbox verified the same answer and nothing
    is left in its
    logic. Blocks of other models are then out of date: bank add computes them again.

    Exit codes: 0 all are parametric (now), 3 some are not, 30-34 engine or model, 41 no bank there,
    42 no sandbox.
    """
    from galahad.bank import rewrite as linting
    from galahad.bank.bank import Bank
    from galahad.bank.entry import Need, RewriteSource, rewritten
    from galahad.measure.engine import EngineRecord

    verify = _verifier(allow_weak)
    lines: list[dict[str, Any]] = []
    with ExitStack() as stack:
        store = stack.enter_context(Bank(bank))
        reader = None
        if rewrite:
            reader = open_reader(model, threads, gpu_layers)
            stack.callback(reader.close)
        for entry in [store.get(id_) for id_ in ids] if ids else store.entries():
            line: dict[str, Any] = {
                "id": entry.id,
                "parametric": entry.parametric,
                "findings": list(entry.findings),
                "rewrite": None,
            }
            if reader is not None and not entry.parametric:
                made = linting.rewrite(entry, reader, max_tokens=tokens, verify=verify)
                line["rewrite"] = {"reason": made.reason, "tokens_out": made.n_out}
                if made.program is not None:
                    provenance = RewriteSource(
                        engine=records.convert(
                            reader.identity(), EngineRecord, what="the engine's identity"
                        ),
                        of=entry.program_sha256,
                        before=entry.provenance,
                    )
                    again = rewritten(entry, made.program, provenance, verify)
                    unknown = Need(solved="not-measured", by="rewrite")
                    need = entry.need.get(reader.model_sha256, unknown)
                    store.add(again, reader, need, replace_existing=True)
                    line |= {"parametric": True, "findings": []}
            lines.append(line)
    if as_json:
        console.emit_json("galahad.bank.lint/1", {"bank": str(bank), "entries": lines})
    else:
        for line in lines:
            console.out(f"{line['id']}: {'parametric' if line['parametric'] else 'not parametric'}")
            for finding in line["findings"]:
                console.out(f"  {finding}")
            if line["rewrite"]:
                console.out(f"  rewrite: {line['rewrite']['reason']}")
    if not all(line["parametric"] for line in lines):
        raise typer.Exit(EXIT_NO)


@commands.command()
def route(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="PROBLEMS", help="Problems or variants that the bank holds.", show_default=False
        ),
    ],
    bank: BankPath,
    outside: Annotated[
        Path | None,
        typer.Option("--outside", help="Queries without an entry, one a line.", show_default=False),
    ] = None,
    ids: Ids = None,
    threshold: Threshold = None,
    as_json: Json = False,
) -> None:
    """Measure the router: how often the right entry is found, and how often it abstains where there
    is none.

    Example: galahad bank route aime.jsonl --bank banks/aime --outside queries.txt

    Problems that the bank does not hold (nor the origin of, for variants) count as outside.

    Exit codes: 0 all routed right, 3 some were not, 40 problem file, 41 no bank there.
    """
    from galahad.bank import routing
    from galahad.bank.bank import Bank
    from galahad.problems import load as problems
    from taliesin.ask import router

    suite = problems.load(file)
    queries = routing.of_problems(chosen(suite.problems, ids, file))
    if outside is not None:
        queries += routing.of_lines(outside)
    with Bank(bank) as store:
        figures = routing.measure(
            store, queries, threshold if threshold is not None else router.THRESHOLD
        )
    if as_json:
        console.emit_json("galahad.bank.route/1", records.plain(figures))
    else:
        console.out(f"in the bank: {figures.inside}")
        console.out(f"outside, abstained: {figures.outside}")
        for one in figures.confusions:
            console.out(
                f"  {one.query}: expected {one.expected or 'none'}, got {one.got or 'none'}"
                f" ({one.reason})"
            )
    if figures.confusions:
        raise typer.Exit(EXIT_NO)


@commands.command()
def rm(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Problems of the bank.", show_default=False)
    ],
    bank: BankPath,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Remove solutions with their blocks, also solutions that were set aside.

    Example: galahad bank rm aime-2025-11 --bank banks/aime --yes

    Exit codes: 0 removed, 2 not confirmed, 41 no such entry.
    """
    from galahad.bank.bank import Bank

    with Bank(bank) as store:
        unknown = set(ids).difference(store.ids(), store.set_aside_ids())
        if unknown:
            from galahad.errors import BankError

            raise BankError(
                f"no such entry: {', '.join(sorted(unknown))}", where=bank, hint="galahad bank list"
            )
        if not confirm(f"Remove {', '.join(ids)} with all blocks?", yes):
            raise UsageError("not confirmed: nothing was removed")
        removed = {id_: store.remove(id_) for id_ in dict.fromkeys(ids)}
    if as_json:
        console.emit_json("galahad.bank.rm/1", {"bank": str(bank), "removed": removed})
        return
    for id_, n_blocks in removed.items():
        console.note(f"{id_}: removed with {n_blocks} block(s)")
