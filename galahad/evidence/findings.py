"""What a raw result says: sentences, and lines of tables, each under the claim that it speaks of.

A result is known by its `schema`; `READERS` has one reader for each that the toolkit writes, and
reports and docs/reproduction.md are made of what they say. Deliberately computes nothing that is
not in the file, sums and ratios of its own figures aside.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from taliesin.errors import FormatError

Document = dict[str, Any]
"""One raw result. Its `file` is the name it has among the others; everything else is its own."""


class Said(NamedTuple):
    """A sentence of a claim."""

    claim: str
    text: str


class Line(NamedTuple):
    """A line of a claim's table: cells by column. Lines with the same columns share a table."""

    claim: str
    cells: dict[str, object]


Finding = Said | Line


def of(document: Document) -> list[Finding]:
    """What the result says; nothing of a schema that has no reader.

    Raises:
        FormatError: a field is missing that the schema promises, or is of another kind.
    """
    reader = READERS.get(str(document.get("schema")))
    if reader is None:
        return []
    with as_promised(document.get("file")):
        found = list(reader(document))
        for line in (finding for finding in found if isinstance(finding, Line)):
            for column, cell in line.cells.items():
                if not isinstance(column, str) or not isinstance(cell, (str, int, float)):
                    raise TypeError(f"{column} is no text or number but {type(cell).__name__}")
    return found


@contextmanager
def as_promised(where: object) -> Iterator[None]:
    """What is read of a raw result inside must be there, and be of the kind that its schema
    promises.

    Raises:
        FormatError: it is not.
    """
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, ArithmeticError) as error:
        raise FormatError(
            "a raw result lacks what its schema promises",
            got=f"{type(error).__name__}: {error}",
            where=where,
        ) from error


def _device(document: Document) -> str:
    """Where it was computed, and the load if that was not small."""
    machine = document.get("machine") or {}
    devices = document.get("recipe", {}).get("devices") or []
    where = "" if devices == ["CPU"] else ", ".join(devices)
    cores = machine.get("cores", 2)
    load = (machine.get("load_average") or [0.0])[0]
    return (where or f"{machine.get('cpu', 'CPU')}, {cores} cores") + (
        f", load {load:.1f}" if load > cores / 2 else ""
    )


def _model(recipe: Document) -> str:
    return (
        f"{recipe['architecture']} {recipe['model_sha256'][:8]}, KV "
        f"{recipe['type_k']}/{recipe['type_v']}"
    )


def _time(seconds: float) -> str:
    return (
        f"{seconds * 1e3:.1f} ms"
        if seconds < 1
        else f"{seconds:.1f} s"
        if seconds < 100
        else f"{seconds:.0f} s"
    )


def _share(right: float, of: float) -> str:
    return f"{right:.0f}/{of:.0f}" + (f" = {right / of:.1%}" if of else "")


def _interval(share: Document) -> str:
    return (
        f"{_share(share['k'], share['n'])} (Wilson 95 %: {share['low']:.1%} to {share['high']:.1%})"
    )


def _timings(document: Document) -> Iterator[Finding]:
    rows: dict[int, dict[str, Document]] = {}
    for row in document["rows"]:
        rows.setdefault(row["n_tokens"], {})[row["mode"]] = row
    for n_tokens, modes in sorted(rows.items()):
        if "fresh" not in modes or len(modes) < 2 or n_tokens < 512:
            continue
        grafts = {name: row for name, row in modes.items() if name != "fresh"}
        exact = all(row["exact"] for row in modes.values())
        cells = {
            "model": _model(document["recipe"]),
            "device": _device(document),
            "tokens": n_tokens,
        }
        cells["prefill"] = _time(modes["fresh"]["median_seconds"])
        cells |= {name: f"{row['speedup']:.1f}x" for name, row in grafts.items()}
        yield Line(
            "C5", {**cells, "exact": "yes" if exact else "NO", "n": len(modes["fresh"]["samples"])}
        )
        if n_tokens == max(rows) and exact:
            best = max(grafts.values(), key=lambda row: row["speedup"])
            yield Said(
                "C4",
                f"{n_tokens} tokens, {_model(document['recipe'])}, {_device(document)}: prefill "
                f"{_time(modes['fresh']['median_seconds'])}, {best['mode']} "
                f"{_time(best['median_seconds'])} = {best['speedup']:.1f}x",
            )


def _exactness(document: Document) -> Iterator[Finding]:
    by_model: dict[str, list[Document]] = {}
    for row in document["rows"]:
        by_model.setdefault(row["model"], []).append(row["report"])
    for model, reports in by_model.items():
        yield from _vectors(model, reports)


def _verify(document: Document) -> Iterator[Finding]:
    """Version 1 of the embedded engine has no field `engine`; all else is as in version 2."""
    yield from _vectors(_model(document["recipe"]), [document])


def _verify_gpu(document: Document) -> Iterator[Finding]:
    yield from _vectors(_model(document["rows"][0]["recipe"]), document["rows"])


def _vectors(model: str, reports: list[Document]) -> Iterator[Finding]:
    """Counts of equal vectors over reports of the verifier."""
    sizes = [report["n_tokens"] for report in reports]
    cells: dict[str, object] = {
        "model": model,
        "device": ", ".join(reports[0]["recipe"].get("devices") or []) or "CPU",
        "blocks of tokens": ", ".join(map(str, sorted(sizes)))
        if len(sizes) < 4
        else f"{min(sizes)} to {max(sizes)}",
        "trials": max(report["trials"] for report in reports),
    }
    served = any(report.get("engine") == "server" for report in reports)
    if served:  # HTTP gives no logits: see the report's `level`
        cells["device"] = f"{cells['device']}, llama-server"
    broken = {report["sabotage"] for report in reports if report.get("sabotage")}
    for promise, key in (
        ("block, then query", "equal_block_then_query"),
        ("one-shot prompt", "equal_one_shot"),
    ):
        promised = [
            r for r in reports if key == "equal_block_then_query" or r["promise"] == "one-shot"
        ]
        lines = [line for report in promised for line in report["rows"] if line[key] is not None]
        if lines:
            equal, n = sum(line[key] for line in lines), sum(line["n_vectors"] for line in lines)
            yield Line(
                "C1",
                {
                    **cells,
                    "equal to": promise,
                    "vectors equal": f"{equal} of {n}" + (" (log-probabilities)" * served),
                    "broken on purpose": ", ".join(broken) or "-",
                },
            )
    found = [r["statistics"] for r in reports if r["statistics"] and r["statistics"]["n"]]
    n = sum(s["n"] for s in found)
    if n and not broken:
        p = [s["mann_whitney_p"] for s in found if s["mann_whitney_p"] is not None]
        yield Line(
            "C2",
            {
                "model": model,
                "device": cells["device"],
                "samples": n,
                "KL median, p99, max": ", ".join(
                    f"{max(s[key] for s in found):.3g}" for key in ("kl_median", "kl_p99", "kl_max")
                ),
                "argmax agreement": f"{sum(s['argmax_agreement'] * s['n'] for s in found) / n:.1%}",
                "smallest Mann-Whitney p": f"{min(p):.3g}" if p else "-",
            },
        )


def _shift(document: Document) -> Iterator[Finding]:
    """`taliesin shift`, and the same on more queries (`shift_residual.py`)."""
    for one in document["shifts"]:
        yield Said("C3", f"{_model(document['recipe'])}, {_device(document)}: {one['statement']}")


def _router(document: Document) -> Iterator[Finding]:
    for name in ("held_in", "held_out"):
        part = document[name]
        inside, outside = part["inside_routed_right"], part["outside_abstained"]
        low, high = inside["wilson_95"]
        yield Said(
            "C15",
            f"{name.replace('_', ' ')}: {_share(inside['right'], inside['of'])} routed right "
            f"(Wilson 95 %: {low:.1%} to {high:.1%}), "
            f"{part['inside_routed_wrong']} routed wrong, "
            f"{_share(outside['right'], outside['of'])} abstained outside",
        )


def _needle(document: Document) -> Iterator[Finding]:
    reads = document["reads"]
    seconds = [read["seconds"] for read in reads]
    size = f" in {document['n_blocks']} blocks" if "n_blocks" in document else ""
    tokens = f"{document['n_tokens']} tokens{size}: " if "n_tokens" in document else ""
    yield Said(
        "C7",
        f"{tokens}{document['n_correct']} of {len(reads)} needles read back, "
        f"{_time(min(seconds))} to {_time(max(seconds))} each",
    )


def _run(document: Document) -> Iterator[Finding]:
    matrix = ", ".join(
        f"{n} {key.replace('/', ' and ')}" for key, n in sorted(document["matrix"].items())
    )
    state = (
        ""
        if document["complete"]
        else f" (stopped after {document['attempts_done']} of {document['attempts_total']} "
        f"attempts)"
    )
    yield Said(
        "C8",
        f"{document['run']}{state}: {_interval(document['accuracy'])}; {matrix}; "
        f"{document['tokens_out']} tokens out",
    )


def _livebench(document: Document) -> Iterator[Finding]:
    for kind in ("transfer", "replay"):
        for task, score in document[kind].items():
            without = score["without"]
            yield Line(
                "C19",
                {
                    "model": document["model"],
                    "score": f"{kind}, {task}"
                    + ("" if document["complete"] else " (run not complete)"),
                    "with the library": _interval(score),
                    "without": _interval(without),
                    "McNemar p": f"{score['paired']['p']:.3g}",
                    "LiveBench's "
                    "score": f"{score['mean_score']:.1%}, without {without['mean_score']:.1%}",
                    "tokens, at most": document["settings"]["tokens"],
                    "cut off": f"{score['cut']}, without {without['cut']}",
                },
            )


def _copies(document: Document) -> Iterator[Finding]:
    for one in document["results"]:
        name = f"{one['model']}, {one['n_tokens']} tokens"
        if "fraction_of_copy_speed" in one:
            yield Said(
                "R1",
                f"{name}: placed at {one['fraction_of_copy_speed']:.0%} of a memory copy's speed",
            )
        else:
            yield Said(
                "R2", f"{name}: writing a block takes {one['ratio']:.2f}x a plain durable write"
            )


def _prefix_cache(document: Document) -> Iterator[Finding]:
    for one in document["results"]:
        yield Said(
            "R7",
            f"{one['model']}, pieces of {one['n_ubatch']}: {one['equal']} of {one['vectors']} "
            f"logits vectors equal to a cold run's; "
            f"{one['reused_tokens'] / one['prompt_tokens']:.1%} of the prompt tokens reused; cold "
            f"prefill took {one['cold_seconds'] / one['warm_seconds']:.2f}x the time",
        )


def _listing(document: Document) -> Iterator[Finding]:
    median = {name: one["median_seconds"] for name, one in document["results"].items()}
    yield Said(
        "R3",
        f"`list` of {document['blocks']} blocks {_time(median['list'])}, `--help` "
        f"{_time(median['help'])} (medians)",
    )


def _sandbox(document: Document) -> Iterator[Finding]:
    yield Said(
        "R4",
        f"a sandboxed start costs {document['over_bare_ms']['full']:.1f} ms over a bare "
        f"interpreter's "
        f"{document['median_ms']['bare']:.1f} ms (medians)",
    )


def _memory(document: Document) -> Iterator[Finding]:
    for one in document["results"]:
        name = f"{one['model']}, {one['n_tokens']} tokens"
        yield Said(
            "R5", f"{name}: a graft adds {one['extra_by_block']:.2f}x its block's bytes to the peak"
        )


def _server(document: Document) -> Iterator[Finding]:
    configurations: dict[tuple[str, str], list[Document]] = {}
    for row in document["rows"]:
        configurations.setdefault((row["configuration"], row["file"]), []).append(row)
    for (configuration, file), rows in configurations.items():
        used = [row for row in rows if row.get("reused")]
        equal = [row for row in used if row["live"] and row["live"]["logprobs"] == row["of"]]
        yield Line(
            "C6",
            {
                "model": f"{document['model']}, {document['n_threads']} thread(s)",
                "server": configuration,
                "slot file": file,
                "block reused": f"{len(used)} of {len(rows)} lengths",
                "then equal to the live run": f"{len(equal)} of {len(used)}" if used else "-",
            },
        )
    for run in document["two_clients"]:
        total = sum(run[k] for k in ("equal", "other_logprobs", "other_tokens", "not_reused"))
        yield Said(
            "C6",
            f"{document['model']}: two clients on four slots for {run['seconds']:.0f} s, "
            f"{'with' if run['turns'] else 'without'} "
            f"turns: {run['equal']} of {total} answers equal the fresh ones",
        )


def _peers(document: Document) -> Iterator[Finding]:
    for row in document["rows"]:
        cells = {
            "model": row["model"],
            "tokens": row["n_tokens"],
            "peer": f"{row['peer']} ({row['variant']})",
        }
        if "tokens_equal" not in row:
            yield Said("R6", ", ".join(map(str, cells.values())) + ": not run")
            continue
        cells["steps equal to the live run"] = f"{row['vectors_equal']} of {row['of']}"
        cells["first token, restored"] = _time(statistics.median(row["restored_seconds"]))
        cells["fresh"] = _time(row["fresh_seconds"])
        yield Line("R6", {**cells, "stored": f"{row['stored_bytes'] / 1e6:.1f} MB"})


_ARMS = {"recall": "C10", "merged": "C12", "transfer": "C13", "direct": "C16", "card": "C17"}


def _arm(document: Document) -> Iterator[Finding]:
    kind, rows = document["kind"], document["rows"]
    control = Path(document["file"]).name.startswith("control-")
    causes = [row["cause"] for row in rows if row["grade"] != "right"]
    cells = {
        "model": document["engine"]["model"],
        "arm": Path(document["file"]).stem,
        "right": _share(sum(row["grade"] == "right" for row in rows), len(rows)),
        "output tokens": sum(row["n_out"] for row in rows),
        "time": _time(sum(row["seconds"] for row in rows)),
        "the others": ", ".join(f"{causes.count(c)} {c}" for c in sorted(set(causes))) or "-",
    }
    claim = "C16" if control and kind == "recall" else _ARMS.get(kind, "C11")
    yield Line(claim, cells)
    if claim == "C17":
        return
    if claim == "C16":
        yield Line("C17", cells)  # what the card is compared with
    for name in ("parametric", "baked-in") if kind == "transfer" else ():
        part = [row for row in rows if row["detail"].get("parametric") == (name == "parametric")]
        if part:
            right = sum(row["grade"] == "right" for row in part)
            yield Line(
                "C14",
                {
                    "model": cells["model"],
                    "arm": cells["arm"],
                    "program": name,
                    "right": _share(right, len(part)),
                },
            )


def _bank(document: Document) -> Iterator[Finding]:
    if len(document["problems"]) == 1:  # of the banks that controls are made of, one by one
        return
    banked = [one for one in document["problems"] if one["n_tokens"]]
    whys = sorted(
        {f"{one['id']}: {one['why']}" for one in document["problems"] if not one["n_tokens"]}
    )
    yield Said(
        "C9",
        f"{Path(document['file']).parent.as_posix()}: {len(banked)} of "
        f"{len(document['problems'])} problems banked, "
        f"{sum(one['n_tokens'] for one in banked)} tokens" + "".join(f"; {why}" for why in whys),
    )


def _lint(document: Document) -> Iterator[Finding]:
    entries = document["entries"]
    baked = ", ".join(one["id"] for one in entries if not one["parametric"])
    rewritten = [one for one in entries if one["rewrite"]]
    yield Said(
        "C14",
        f"{sum(one['parametric'] for one in entries)} of {len(entries)} banked programs are "
        f"parametric"
        + (f"; not: {baked}" if baked else "")
        + (
            f"; {len(rewritten)} rewrites asked for, "
            f"{sum(one['parametric'] for one in rewritten)} kept"
            if rewritten
            else ""
        ),
    )


def _cost(document: Document) -> Iterator[Finding]:
    for one in document["arms"]:
        joules = one["joules"]
        point, ratio = one["tokens_per_point"], one["tokens_ratio"]
        yield Line(
            "C20",
            {
                "arm": one["name"],
                "right": _share(one["accuracy"]["k"], one["accuracy"]["n"]),
                "tokens out": one["tokens_out"],
                "a problem": f"{one['tokens_per_problem']:.1f}",
                "a point": "-" if point is None else f"{point:.3g}",
                "fewer a problem than the first": "-" if ratio is None else f"{ratio:.1f}x",
                "time": _time(one["seconds"]),
                "joules": one["energy"]
                if joules is None
                else f"{joules['low']:.0f} to {joules['high']:.0f}",
            },
        )
    first, *others = document["arms"]
    for one in others:
        if one["name"].startswith("recall ") and one["tokens_ratio"]:
            yield Said(
                "C11",
                f"{first['name']}: {first['tokens_out']} tokens for "
                f"{_share(first['accuracy']['k'], first['accuracy']['n'])}; "
                f"{one['name']}: {one['tokens_out']} tokens for "
                f"{_share(one['accuracy']['k'], one['accuracy']['n'])}: "
                f"{one['tokens_ratio']:.0f}x fewer a problem",
            )
    score = document["score"]
    if score:
        transfer = "; ".join(map(_interval, score["transfers"])) or "not measured"
        yield Said(
            "C10",
            f"system score: {score['confident_right']} confident and right + "
            f"{score['recovered']} recovered = "
            f"{_interval(score['system'])}; transfer, the figure for generalisation, each arm by "
            f"itself: {transfer}",
        )


def _bank_route(document: Document) -> Iterator[Finding]:
    inside, outside = document["inside"], document["outside"]
    own = any(query["query"] == query["expected"] for query in document["queries"])
    confused = "; ".join(
        f"{one['query']} went to {one['got'] or 'none'}" for one in document["confusions"]
    )
    yield Said(
        "C15",
        f"a bank's router: {_share(inside['k'], inside['n'])} of "
        f"{'problems to themselves' if own else 'variants to their origin'}, "
        f"{_share(outside['k'], outside['n'])} abstained outside; confusions: {confused or 'none'}",
    )


def _isomorph(document: Document) -> Iterator[Finding]:
    problems = document["problems"]
    none = ", ".join(one["origin"] for one in problems if not one["found"])
    found = sum(bool(one["found"]) for one in problems)
    yield Said(
        "C13",
        f"{found} of {len(problems)} problems have a variant on which three programs agree"
        + (f"; none: {none}" if none else ""),
    )


def _bundle(document: Document) -> Iterator[Finding]:
    here, there = document["packed_on"], document["proved_on"]
    for row in document["rows"]:
        proofs = row["proofs"]
        others = {
            proof["statement"].split(": stored")[0]
            for proof in proofs
            if proof["verdict"] != "exact"
        }
        cells = {"model": row["model"], "packed on": f"{here['cpu']}, {here['cores']} cores"}
        cells["proved on"] = f"{there['cpu']}, {there['cores']} cores"
        cells["exact there"] = (
            f"{sum(proof['verdict'] == 'exact' for proof in proofs)} of {len(proofs)} blocks"
        )
        yield Line("C18", {**cells, "the others": "; ".join(sorted(others)) or "-"})


def _upgrade(document: Document) -> Iterator[Finding]:
    for run in document["runs"]:
        blocks = run["blocks"]
        counts = {
            status: sum(b["status"] == status for b in blocks) for status in ("verified", "rebuilt")
        }
        rebuilt = [block for block in blocks if block["status"] == "rebuilt"]
        others = ", ".join(b["status"] for b in blocks if b["status"] not in counts)
        cells = {
            "model": document["model"],
            "machine": _device(document),
            "options": " ".join(run["options"]) or "none",
        }
        cells |= {"blocks": len(blocks), **counts, "otherwise": others or "-"}
        cells["why rebuilt"] = (
            "; ".join(sorted({block["reason"].split(": stored")[0] for block in rebuilt})) or "-"
        )
        yield Line("C22", {**cells, "time": _time(run["seconds"]), "exit code": run["exit_code"]})


READERS: dict[str, Callable[[Document], Iterator[Finding]]] = {
    "taliesin.bench/1": _timings,
    "taliesin.bench.bundle-move/1": _bundle,
    "taliesin.bench.exactness-matrix/1": _exactness,
    "taliesin.bench.graft-memory/1": _memory,
    "taliesin.bench.library-list/1": _listing,
    "taliesin.bench.peers/1": _peers,
    "taliesin.bench.prefix-cache/1": _prefix_cache,
    "taliesin.bench.restore-speed/1": _copies,
    "taliesin.bench.save-speed/1": _copies,
    "taliesin.bench.server/1": _server,
    "taliesin.bench.shift-residual/1": _shift,
    "taliesin.bench.upgrade/1": _upgrade,
    "taliesin.bench.verify-gpu/1": _verify_gpu,
    "taliesin.needle/1": _needle,
    "taliesin.bench.router-calibration/1": _router,
    "taliesin.shift/1": _shift,
    "taliesin.verify/1": _verify,
    "taliesin.verify/2": _verify,
    "galahad.arm/1": _arm,
    "galahad.bank.add/1": _bank,
    "galahad.bank.lint/1": _lint,
    "galahad.bank.route/1": _bank_route,
    "galahad.benchmark.sandbox_overhead/1": _sandbox,
    "galahad.cost/1": _cost,
    "galahad.isomorph/1": _isomorph,
    "galahad.livebench/2": _livebench,
    "galahad.recall/1": _arm,
    "galahad.report/1": _run,
    "galahad.solve/1": _run,
    "galahad.transfer/1": _arm,
}
