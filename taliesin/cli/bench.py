"""`taliesin bench|advise|needle`: what a graft saves on this machine, whether a text is worth a
block, how deep one can read.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taliesin.cli.options import (
    GpuLayers,
    Json,
    KvType,
    LibraryPath,
    MemoryBudget,
    Model,
    Raw,
    ResidentBudget,
    TextFile,
    Threads,
    TypeK,
    TypeV,
    Ubatch,
    default_settings,
    parse_bytes,
    read_text,
)
from taliesin.errors import EXIT_NO, StoreFull, UsageError
from taliesin.host import console, durable

if TYPE_CHECKING:
    from taliesin.measure.bench import BenchReport
    from taliesin.measure.needle import NeedleReport

commands = typer.Typer()


def numbers(text: str, what: str) -> list[int]:
    """Whole numbers above zero from `748,5977,11994`.

    Raises:
        UsageError: it is not such a list.
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UsageError(
            f"{what} is not a list of numbers", expected="for example 748,5977", got=text
        )
    return found


def fractions(text: str, what: str) -> list[float]:
    """Numbers above 0 and at most 1 from `0.1,0.5`.

    Raises:
        UsageError: it is not such a list.
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < value <= 1 for value in found):
        raise UsageError(
            f"{what} is not a list of shares", expected="for example 0.1,0.5", got=text
        )
    return found


@commands.command()
def bench(
    lengths: Annotated[
        str, typer.Option("--lengths", help="Tokens of the blocks, separated by commas.")
    ] = "748,5977,11994",
    small: Annotated[
        str,
        typer.Option("--small", help="More lengths, for the break-even; an empty text for none."),
    ] = "8,32,128,512",
    repeats: Annotated[int, typer.Option("--repeats", help="Timed runs of each.", min=1)] = 5,
    query_tokens: Annotated[
        int, typer.Option("--query-tokens", help="Tokens decoded after the block.", min=1)
    ] = 1,
    check_steps: Annotated[
        int, typer.Option("--check-steps", help="Greedy steps hashed after each timed run.", min=0)
    ] = 7,
    type_k: TypeK = KvType.F16,
    type_v: TypeV = KvType.F16,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Write OUT.json (every sample), OUT.md and OUT.png.", show_default=False
        ),
    ] = None,
    model: Model = None,
    threads: Threads = None,
    ubatch: Ubatch = None,
    gpu_layers: GpuLayers = 0,
    as_json: Json = False,
) -> None:
    """Time fresh prefill against graft, from disk (cold and warm), from memory and resident, and
    check every graft's bits.

    taliesin bench --lengths 748,2048 --model gemma3-270m

    Each time runs to the logits after one more token. Fresh and graft alternate in one run. A mode
    with a vector that is not equal to the fresh one is marked NOT EXACT and counts for nothing.
    "Cold" means that the kernel forgot the file, and the output says if it did not; the disk's own
    cache is out of reach. "Hashed" means that every byte read was verified.

    Exit codes: 0 all exact, 2 a length or count out of range, 3 a graft was not exact, 13 no space,
    31 no such model.
    """
    from dataclasses import replace

    from taliesin.engine.embedded import Engine
    from taliesin.measure import bench as measure
    from taliesin.models import resolve as models

    if out is not None:
        require_results(out)
    wanted = sorted({*numbers(lengths, "--lengths"), *(numbers(small, "--small") if small else [])})
    settings = replace(default_settings(threads, ubatch), type_k=type_k.value, type_v=type_v.value)
    with Engine(model or models.DEFAULT, settings.checked(), gpu_layers) as engine:
        runner = measure.Bench(
            engine, repeats=repeats, query_tokens=query_tokens, check_steps=check_steps
        )
        total = sum(wanted) * repeats  # a fresh prefill takes nearly all of the time
        with console.progress("bench", total, "tokens") as advance:
            report = runner.run(
                wanted, lambda n, mode, _seconds: advance(n if mode == "fresh" else 0)
            )
    _show(report, out, as_json)
    if not all(row.exact for row in report.rows):
        raise typer.Exit(EXIT_NO)


def _show(report: BenchReport, out: Path | None, as_json: bool) -> None:
    from taliesin.measure import bench as measure

    if as_json:
        console.emit_json("taliesin.bench/1", report.as_dict())
    else:
        console.out(console.table(measure.HEADERS, measure.table_rows(report)))
        for line in measure.break_even_lines(report):
            console.out(line)
    warmest = [s.cached_before for row in report.rows if "cold" in row.mode for s in row.samples]
    if any(fraction is None or fraction > 0.01 for fraction in warmest):
        console.warn("the kernel kept part of a file that should be cold: read those rows as warm")
    if out is not None:
        write_results(out, "taliesin.bench/1", report.as_dict(), measure.markdown(report))
        try:
            measure.plot(report, out.with_suffix(".png"))
        except UsageError as error:
            console.warn(f"{error.message}; {error.hint}")


def require_results(out: Path) -> None:
    """Find out whether `write_results` can write there: before what may take hours.

    Raises:
        StoreFull: no space, or not permitted.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreFull(
            "the folder of the results cannot be made", got=error.strerror, where=out.parent
        ) from error
    durable.require_output(out.with_suffix(".json"))


def write_results(out: Path, schema: str, fields: dict[str, Any], page: str) -> None:
    """`OUT.json` and `OUT.md`; folders are made. Raises as `require_results`."""
    require_results(out)
    document = json.loads(console.json_line({"schema": schema, **fields}))
    durable.write_output(
        out.with_suffix(".json"), json.dumps(document, indent=1) + "\n", mode=0o666
    )
    durable.write_output(out.with_suffix(".md"), page, mode=0o666)


@commands.command()
def advise(
    text: TextFile,
    model: Model = None,
    raw: Raw = False,
    threads: Threads = None,
    ubatch: Ubatch = None,
    gpu_layers: GpuLayers = 0,
    as_json: Json = False,
) -> None:
    """Say whether a text is worth a block here: measures this machine with short blocks for some
    seconds.

    taliesin advise handbook.txt

    Prints prefill and graft seconds for that length, what the block takes on disk, after how many
    uses the saving has paid, and from how many tokens on a graft is the faster way at all.

    Exit codes: 0 a block pays, 2 no text, 3 prefill is faster, 31 no such model.
    """
    from taliesin.engine import prompt
    from taliesin.engine.embedded import Engine
    from taliesin.measure import bench as measure
    from taliesin.models import resolve as models

    content = read_text(text)
    if not content:
        raise UsageError("nothing to advise on", expected="a text", got="an empty one", where=text)
    with Engine(model or models.DEFAULT, default_settings(threads, ubatch), gpu_layers) as engine:
        shape = prompt.frame(engine.model, raw=raw)
        body = engine.model.tokenize(content, special=False)
        n_tokens = len(shape.before) + len(body) + len(shape.between)
        advice = measure.advise(engine, n_tokens)
    if as_json:
        console.emit_json("taliesin.advise/1", advice.as_dict())
    else:
        about = (
            ""
            if advice.measured_tokens == n_tokens
            else f" (measured at {advice.measured_tokens} tokens, and scaled)"
        )
        console.out(
            f"{n_tokens} tokens: prefill {advice.fresh_seconds * 1e3:.1f} ms, graft from disk "
            f"{advice.graft_seconds * 1e3:.1f} ms, "
            f"block {console.human_bytes(advice.block_bytes)}{about}"
        )
        if advice.break_even_tokens is None:
            console.out("prefill was faster at every length measured")
        elif advice.break_even_tokens > 0:
            console.out(f"a graft is faster from about {advice.break_even_tokens:.0f} tokens on")
        else:
            console.out("a graft was faster at every length measured")
        if not advice.exact:
            console.out("the graft was not exact: taliesin doctor")
        elif advice.pays:
            console.out(
                f"a block pays: {advice.fresh_seconds / advice.graft_seconds:.1f} times faster, "
                "and saving it "
                f"({advice.save_seconds * 1e3:.0f} ms more than a prefill) is won back after "
                f"{advice.uses} use(s)"
            )
        else:
            console.out("prefill is faster: do not save this text")
    if not advice.pays:
        raise typer.Exit(EXIT_NO)


@commands.command()
def needle(
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of the corpus.", min=1)] = 24_000,
    blocks: Annotated[int, typer.Option("--blocks", help="Blocks it is cut into.", min=1)] = 12,
    depths: Annotated[
        int,
        typer.Option("--depths", help="Numbers buried, from the first token to the last.", min=1),
    ] = 7,
    seed: Annotated[int, typer.Option("--seed", help="Another seed, another corpus.")] = 0,
    resident: ResidentBudget = "0",
    memory: MemoryBudget = "0",
    out: Annotated[
        Path | None, typer.Option("--out", help="Write OUT.json and OUT.md.", show_default=False)
    ] = None,
    library: LibraryPath = None,
    model: Model = None,
    threads: Threads = None,
    ubatch: Ubatch = None,
    gpu_layers: GpuLayers = 0,
    as_json: Json = False,
) -> None:
    """Bury numbers in a corpus many times longer than the context, and read each back from the one
    block that holds it.

    taliesin needle --tokens 24000 --blocks 12 --depths 7

    Makes the corpus from the seed and stores its blocks (named needle-SEED-TOKENS-...); those that
    are there already are used, so a stopped run goes on where it was. `taliesin rm` removes them.
    Then each question is routed by its words, its block grafted, and the number generated under a
    grammar of one to five digits. Prints for each depth the block, whether the number is right, and
    seconds; then the slope of seconds over depth with its 95 % interval.

    Exit codes: 0 every number right, 2 sizes that do not fit the model, 3 one is wrong, 13 no
    space, 31 no such model.
    """
    from taliesin.engine.embedded import Engine
    from taliesin.engine.tiers import Tiers
    from taliesin.host import machine
    from taliesin.measure import needle as hunt
    from taliesin.models import resolve as models
    from taliesin.store.library import Library

    resident_bytes, memory_bytes = parse_bytes(resident), parse_bytes(memory)
    if out is not None:
        require_results(out)
    settings = default_settings(threads, ubatch)
    with Engine(model or models.DEFAULT, settings, gpu_layers) as engine, Library(library) as store:
        search = hunt.Hunt(engine, store, tokens, blocks, depths, seed)
        started = time.perf_counter()
        with console.progress("prefill", blocks, "blocks") as advance:
            saved, reused = search.save(lambda _reused, _n: advance(1))
        save_seconds = time.perf_counter() - started
        console.note(
            f"{console.count(saved, 'block')} saved, {reused} were there, {save_seconds:.1f} s"
        )
        with Tiers(engine, store, resident_bytes, memory_bytes) as tiers:
            reads = list(search.read(tiers))
        report = search.report(reads, saved, reused, save_seconds)
    fields = {
        **report.as_dict(),
        "machine": machine.describe(),
        "model": engine.model.path.name,
        "seed": seed,
    }
    if as_json:
        console.emit_json("taliesin.needle/1", fields)
    else:
        console.out(console.table(NEEDLE_HEADERS, _needle_rows(report)))
        for line in _needle_summary(report):
            console.out(line)
    if out is not None:
        write_results(out, "taliesin.needle/1", fields, _needle_page(report, fields))
    if report.n_correct < len(reads):
        raise typer.Exit(EXIT_NO)


NEEDLE_HEADERS = (
    "depth",
    "block",
    "routed to",
    "number",
    "read",
    "right",
    "tier",
    "route ms",
    "graft ms",
    "answer ms",
    "seconds",
)


def _needle_rows(report: NeedleReport) -> list[tuple[str, ...]]:
    return [
        (
            str(r.depth),
            str(r.block + 1),
            r.routed or "(none)",
            r.expected,
            r.answer or "-",
            "yes" if r.correct else "NO",
            r.tier or "-",
            f"{r.route_seconds * 1e3:.1f}",
            f"{r.graft_seconds * 1e3:.1f}",
            f"{r.answer_seconds * 1e3:.1f}",
            f"{r.seconds:.3f}",
        )
        for r in report.reads
    ]


def _needle_summary(report: NeedleReport) -> list[str]:
    times = report.n_tokens / report.n_ctx_train
    lines = [
        f"{report.n_correct}/{len(report.reads)} right; {report.n_tokens} tokens in "
        f"{console.count(report.n_blocks, 'block')} "
        f"({console.human_bytes(report.library_bytes)} on disk), {times:.1f} times the model's "
        f"context of {report.n_ctx_train}",
        f"peak memory {console.human_bytes(report.peak_bytes)}"
        + (
            f", GPU {console.human_bytes(report.gpu_bytes)} in use"
            if report.gpu_bytes is not None
            else ""
        ),
    ]
    if (fit := report.slope) is not None:
        verdict = "time grows with depth" if fit.grows else "time does not grow with depth"
        lines.append(
            f"{verdict}: slope {fit.seconds_per_million:+.3f} s per million tokens, 95 % "
            f"interval {fit.low:+.3f} to {fit.high:+.3f}"
        )
    return lines


def _needle_page(report: NeedleReport, fields: dict[str, Any]) -> str:
    facts = fields["machine"]
    load = facts["load_average"]
    lines = [
        f"# Needles: {fields['model']}",
        "",
        f"{facts['time']}, {facts['cpu']}, {facts['cores']} cores, seed {fields['seed']}"
        + (f", load average {load[0]:.2f}" if load else ""),
        "",
        console.markdown_table(NEEDLE_HEADERS, _needle_rows(report)),
        "",
        *(f"- {line}" for line in _needle_summary(report)),
        "",
    ]
    return "\n".join(lines)
