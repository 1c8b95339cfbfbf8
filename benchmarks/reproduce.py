"""Write docs/reproduction.md: every claim, the paper's figure, and ours, computed from the raw results beside this script.

    python benchmarks/reproduce.py            # write it
    python benchmarks/reproduce.py --check    # exit 3 if the document and the results disagree

`claims.yaml` says what each claim is and which command measures it. A result belongs to a claim by its `schema`: `READERS` turns a
raw file into sentences, and nothing else does. A claim that no result speaks of is "not measured". Results that no reader knows are
listed with their hashes, so that every file in the folder is in the document.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from taliesin import console
from taliesin.errors import EXIT_NO, FormatError

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CLAIMS = ROOT / "benchmarks" / "claims.yaml"
DOCUMENT = ROOT / "docs" / "reproduction.md"

Document = dict[str, Any]
Finding = tuple[str, str]
"""Claim, and a sentence of it."""


class Result(NamedTuple):
    """One raw file: its objects (one, or one a line), and the SHA-256 of its bytes."""

    path: Path
    documents: list[Document]
    sha256: str

    @property
    def schema(self) -> str:
        return str(self.documents[0].get("schema", "none")) if self.documents else "none"


def load(folder: Path) -> list[Result]:
    """Every .json and .jsonl of the folder, sorted by name.

    Raises:
        FormatError: one is not JSON.
    """
    found = []
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.jsonl")]):
        data = path.read_bytes()
        try:
            try:
                documents = [json.loads(data)]
            except ValueError:
                documents = [json.loads(line) for line in data.splitlines() if line.strip()]
        except ValueError as error:
            raise FormatError("a raw result is not JSON", got=str(error), where=path) from error
        found.append(Result(path, [d for d in documents if isinstance(d, dict)], hashlib.sha256(data).hexdigest()))
    return found


# -- one reader a schema -----------------------------------------------------------------------------------------------


def _machine(document: Document) -> str:
    recipe = document.get("recipe", {})
    devices = recipe.get("devices") or []
    machine = document.get("machine", {})
    where = ", ".join(devices) or f"{machine.get('cpu', 'CPU')}, {machine.get('cores', '?')} cores"
    load = (machine.get("load_average") or [0.0])[0]
    return where + (f", load {load:.1f}" if load > machine.get("cores", 2) / 2 else "")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _share(right: float, of: float) -> str:
    return f"{right:.0f}/{of:.0f}" + (f" = {right / of:.1%}" if of else "")


def _timings(document: Document) -> Iterator[Finding]:
    recipe = document["recipe"]
    model = f"{recipe['architecture']} {recipe['model_sha256'][:8]}, K {recipe['type_k']}, V {recipe['type_v']}"
    rows: dict[int, dict[str, Document]] = {}
    for row in document["rows"]:
        rows.setdefault(row["n_tokens"], {})[row["mode"]] = row
    for n_tokens, modes in sorted(rows.items()):
        if "fresh" not in modes or len(modes) < 2 or n_tokens < 512:
            continue
        fresh = modes["fresh"]["median_seconds"]
        grafts = "; ".join(
            f"{mode} {_ms(row['median_seconds'])} ({row['speedup']:.1f}x)"
            for mode, row in modes.items()
            if mode != "fresh"
        )
        exact = all(row["exact"] for row in modes.values())
        n = len(modes["fresh"]["samples"])
        said = f"{n_tokens} tokens ({model}; {_machine(document)}; medians of {n}): prefill {_ms(fresh)}; {grafts}"
        yield "C5", said + ("" if exact else "; NOT EXACT")
        if n_tokens == max(rows):
            yield "C4", said + ("; every hashed vector equal" if exact else "; NOT EXACT")


def _exactness(document: Document) -> Iterator[Finding]:
    by_model: dict[str, list[Document]] = {}
    for row in document["rows"]:
        by_model.setdefault(row["model"], []).append(row["report"])
    for model, reports in by_model.items():
        for promise, key in (("block, then query", "equal_block_then_query"), ("one-shot prompt", "equal_one_shot")):
            lines = [line for report in reports for line in report["rows"] if line[key] is not None]
            equal, n = sum(line[key] for line in lines), sum(line["n_vectors"] for line in lines)
            if n and (key == "equal_block_then_query" or any(r["promise"] == "one-shot" for r in reports)):
                sizes = [report["n_tokens"] for report in reports]
                lengths = f"{len(sizes)} block lengths, {min(sizes)} to {max(sizes)} tokens"
                yield "C1", f"{model}: {equal} of {n} logits vectors SHA-256-equal to {promise} ({lengths})"
        yield from _statistics(model, reports)


def _verify(document: Document) -> Iterator[Finding]:
    lines = document["rows"]
    equal, n = sum(line["equal_block_then_query"] for line in lines), sum(line["n_vectors"] for line in lines)
    recipe = document["recipe"]
    name = f"{recipe['architecture']} {recipe['model_sha256'][:8]} ({', '.join(recipe['devices']) or 'CPU'})"
    broken = f", broken on purpose ({document['sabotage']})" if document.get("sabotage") else ""
    yield (
        "C1",
        f"{name}: {equal} of {n} logits vectors equal, {document['trials']} trials, {document['n_tokens']} tokens{broken}",
    )
    if not broken:
        yield from _statistics(name, [document])


def _statistics(name: str, reports: list[Document]) -> Iterator[Finding]:
    found = [report["statistics"] for report in reports]
    n = sum(s["n"] for s in found)
    if n:
        agreement = sum(s["argmax_agreement"] * s["n"] for s in found) / n
        p = [s["mann_whitney_p"] for s in found if s["mann_whitney_p"] is not None]
        smallest = f", smallest Mann-Whitney p {min(p):.3g}" if p else ""
        yield (
            "C2",
            f"{name}: {n} samples, KL max {max(s['kl_max'] for s in found):.3g}, argmax agreement {agreement:.1%}{smallest}",
        )


def _shift(document: Document) -> Iterator[Finding]:
    for one in document["shifts"]:
        yield "C3", one["statement"]


def _router(document: Document) -> Iterator[Finding]:
    for name in ("held_in", "held_out"):
        part = document[name]
        inside, outside = part["inside_routed_right"], part["outside_abstained"]
        low, high = inside["wilson_95"]
        yield (
            "C15",
            f"{name.replace('_', ' ')}: {_share(inside['right'], inside['of'])} routed right (Wilson 95 %: {low:.1%} to {high:.1%}), "
            f"{_share(outside['right'], outside['of'])} abstained outside",
        )


def _needle(document: Document) -> Iterator[Finding]:
    reads = document["reads"]
    seconds = [read["seconds"] for read in reads]
    size = f" in {document['n_blocks']} blocks" if "n_blocks" in document else ""
    tokens = f"{document['n_tokens']} tokens{size}: " if "n_tokens" in document else ""
    yield (
        "C7",
        f"{tokens}{document['n_correct']} of {len(reads)} needles read back, {_ms(min(seconds))} to {_ms(max(seconds))} each",
    )


def _run(document: Document) -> Iterator[Finding]:
    accuracy = document["accuracy"]
    matrix = ", ".join(f"{n} {key.replace('/', ' and ')}" for key, n in sorted(document["matrix"].items()))
    state = (
        ""
        if document["complete"]
        else f" (stopped after {document['attempts_done']} of {document['attempts_total']} attempts)"
    )
    yield (
        "C8",
        f"{document['run']}{state}: {_share(accuracy['k'], accuracy['n'])} (Wilson 95 %: {accuracy['low']:.1%} to "
        f"{accuracy['high']:.1%}); {matrix}; {document['tokens_out']} tokens out",
    )


def _livebench(document: Document) -> Iterator[Finding]:
    for kind in ("replay", "transfer"):
        for task, score in document[kind].items():
            yield (
                "C19",
                f"{document['model']}, {kind}, {task}: {_share(score['right'], score['n'])} "
                f"(without the library {_share(score['without']['right'], score['without']['n'])})",
            )


def _copies(document: Document) -> Iterator[Finding]:
    for one in document["results"]:
        if "fraction_of_copy_speed" in one:
            yield (
                "R1",
                f"{one['model']}, {one['n_tokens']} tokens: placed at {one['fraction_of_copy_speed']:.0%} of a memory copy's speed",
            )
        else:
            yield (
                "R2",
                f"{one['model']}, {one['n_tokens']} tokens: writing a block takes {one['ratio']:.2f}x a plain durable write",
            )


def _listing(document: Document) -> Iterator[Finding]:
    median = {name: one["median_seconds"] for name, one in document["results"].items()}
    yield "R3", f"`list` of {document['blocks']} blocks {_ms(median['list'])}, `--help` {_ms(median['help'])} (medians)"


def _sandbox(document: Document) -> Iterator[Finding]:
    yield (
        "R4",
        f"a sandboxed start costs {document['over_bare_ms']['full']:.1f} ms over a bare interpreter's "
        f"{document['median_ms']['bare']:.1f} ms (medians)",
    )


def _memory(document: Document) -> Iterator[Finding]:
    for one in document["results"]:
        yield (
            "R5",
            f"{one['model']}, {one['n_tokens']} tokens: a graft adds {one['extra_by_block']:.2f}x its block's bytes to the peak",
        )


def _server(document: Document) -> Iterator[Finding]:
    rows = document["rows"]
    reused = [row for row in rows if row.get("reused")]
    equal = [row for row in reused if row["live"] and row["live"]["logprobs"] == row["of"]]
    yield (
        "C6",
        f"llama-server, {document['model']}, window {document['window']}: a restored slot was reused in {len(reused)} of {len(rows)} "
        f"configurations and lengths, and gave the live run's log-probabilities at every step in {len(equal)} of those",
    )


def _peers(document: Document) -> Iterator[Finding]:
    for row in document["rows"]:
        name = f"{row['model']}, {row['n_tokens']} tokens, {row['peer']} ({row['variant']})"
        if "tokens_equal" not in row:
            yield "R6", f"{name}: not run"
            continue
        restored = statistics.median(row["restored_seconds"])
        yield (
            "R6",
            f"{name}: {row['vectors_equal']} of {row['of']} steps equal the live run's, first token after {_ms(restored)} "
            f"(fresh {_ms(row['fresh_seconds'])}), {row['stored_bytes'] / 1e6:.1f} MB stored",
        )


_ARMS = {"recall": "C10", "merged": "C12", "transfer": "C13", "direct": "C16", "card": "C17"}


def _arm(document: Document) -> Iterator[Finding]:
    kind, rows = document["kind"], document["rows"]
    right = sum(row["grade"] == "right" for row in rows)
    tokens = sum(row["n_out"] for row in rows)
    yield (
        _ARMS.get(kind, "C11"),
        f"{document['engine']['model']}, {kind}: {_share(right, len(rows))} right, {tokens} output tokens, "
        f"{sum(row['seconds'] for row in rows):.0f} s",
    )


def _bank_route(document: Document) -> Iterator[Finding]:
    inside, outside = document["inside"], document["outside"]
    yield (
        "C15",
        f"a bank's router: {_share(inside['k'], inside['n'])} of variants to their origin, "
        f"{_share(outside['k'], outside['n'])} abstained outside",
    )


def _isomorph(document: Document) -> Iterator[Finding]:
    problems = document["problems"]
    none = ", ".join(one["origin"] for one in problems if not one["found"])
    found = sum(bool(one["found"]) for one in problems)
    yield "C13", f"{found} of {len(problems)} problems have a variant on which three programs agree; none: {none}"


READERS: dict[str, Callable[[Document], Iterator[Finding]]] = {
    "taliesin.bench/1": _timings,
    "taliesin.bench.exactness-matrix/1": _exactness,
    "taliesin.bench.graft-memory/1": _memory,
    "taliesin.bench.library-list/1": _listing,
    "taliesin.bench.peers/1": _peers,
    "taliesin.bench.restore-speed/1": _copies,
    "taliesin.bench.save-speed/1": _copies,
    "taliesin.bench.server/1": _server,
    "taliesin.needle/1": _needle,
    "taliesin.router-calibration/1": _router,
    "taliesin.shift/1": _shift,
    "taliesin.verify/1": _verify,
    "galahad.arm/1": _arm,
    "galahad.bank-route/1": _bank_route,
    "galahad.benchmark.sandbox_overhead/1": _sandbox,
    "galahad.isomorph/1": _isomorph,
    "galahad.livebench/1": _livebench,
    "galahad.report/1": _run,
    "galahad.solve/1": _run,
}


# -- the document ------------------------------------------------------------------------------------------------------


def build(results: list[Result], claims: list[dict[str, str]]) -> str:
    """The document.

    Raises:
        FormatError: a result of a known schema lacks a field.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    unread = []
    for result in results:
        reader = READERS.get(result.schema)
        if reader is None:
            unread.append(result)
            continue
        try:
            for document in result.documents:
                for claim, said in reader(document):
                    found.setdefault(claim, []).append((said, result.path.name))
        except (KeyError, TypeError, IndexError, ValueError, statistics.StatisticsError) as error:
            raise FormatError(
                "a raw result lacks what its schema promises", got=f"{type(error).__name__}: {error}", where=result.path
            ) from error
    parts = [
        "# Reproduction",
        "Written by `make reproduce` from the raw results in `benchmarks/results/`; a test fails when the two disagree. Claims C1 to "
        "C22 are those of arXiv 2607.14431 as reported, measured with other models and on other machines: read the figures beside "
        "each other and not as one. R1 to R6 are our own. Nothing here was typed by hand.",
    ]
    known = {claim["id"] for claim in claims}
    assert set(found) <= known, f"claims without a line in {CLAIMS.name}: {sorted(set(found) - known)}"
    n_measured = sum(claim["id"] in found for claim in claims)
    parts.append(f"{n_measured} of {len(claims)} claims have a result here.")
    for claim in claims:
        lines = [f"## {claim['id']}. {claim['claim']}", ""]
        lines += [f"- paper: {claim['paper']}"] if claim.get("paper") else []
        lines += [f"- command: `{claim['command']}`"]
        if claim.get("test"):
            lines.append(f"- test: `{claim['test']}`")
        lines += [
            f"- ours: {said} ([{name}](../benchmarks/results/{name}))" for said, name in found.get(claim["id"], [])
        ]
        if claim["id"] not in found:
            lines.append("- ours: **not measured**" + (" (shown by its test)" if claim.get("test") else ""))
        parts.append("\n".join(lines))
    rows = ["| file | schema | SHA-256 |", "| --- | --- | --- |"]
    rows += [f"| {r.path.name} | {r.schema} | `{r.sha256}` |" for r in results]
    parts.append("## Raw results\n\n" + "\n".join(rows))
    if unread:
        parts.append("Without a reader here: " + ", ".join(r.path.name for r in unread) + ".")
    return "\n\n".join(parts) + "\n"


def claims() -> list[dict[str, str]]:
    loaded: list[dict[str, str]] = yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))
    return loaded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 3 if the document is another one")
    options = parser.parse_args()
    text = build(load(RESULTS), claims())
    if options.check:
        same = DOCUMENT.exists() and DOCUMENT.read_text(encoding="utf-8") == text
        console.note("the document and the results agree" if same else "they disagree: make reproduce")
        sys.exit(0 if same else EXIT_NO)
    DOCUMENT.write_text(text, encoding="utf-8")
    console.note(f"{DOCUMENT.relative_to(ROOT)}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
