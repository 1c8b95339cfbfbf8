"""A report as one HTML page: no script, no server, no external asset; readable on a phone and on
paper.

Takes summaries and raw results that others made and lays them out. Deliberately computes no figure
of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from galahad.evidence import findings
from galahad.evidence.compare import Comparison
from galahad.evidence.cost import CostResult
from galahad.evidence.findings import Document
from galahad.solve.summary import Summary
from taliesin.errors import UsageError
from taliesin.host import console, records
from taliesin.host.findings import Result
from taliesin.measure.results import BenchResult

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--paper:#fff;--good:#1a7f37;--bad:#b42318;--bar:#3b6ea8;--two:#c9772b}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9da7b1;--line:#30363d;--paper:#0d1117;--good:#3fb950;--bad:#ff7b72;--bar:#6ca4e0;--two:#e0a060}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1rem 1.2rem 4rem;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif;overflow-wrap:break-word}
h1{font-size:1.5rem;margin:.6rem 0}h1,p,li{overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
p,ul{margin:.4rem 0}ul{padding-left:1.4rem}.soft{color:var(--soft)}
.wide{overflow-x:auto;margin:.6rem 0;background:linear-gradient(90deg,var(--paper) 1rem,transparent 2.5rem) left/2.5rem 100% no-repeat local,linear-gradient(-90deg,var(--paper) 1rem,transparent 2.5rem) right/2.5rem 100% no-repeat local,linear-gradient(90deg,var(--line),transparent) left/.7rem 100% no-repeat scroll,linear-gradient(-90deg,var(--line),transparent) right/.7rem 100% no-repeat scroll}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem}.s{white-space:nowrap}.t{min-width:15rem}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}th{color:var(--soft);font-weight:600}
td.n,th.n{text-align:right}.right{color:var(--good)}.wrong{color:var(--bad)}
.cards{display:flex;flex-wrap:wrap;gap:.6rem;margin:.8rem 0}.card{border:1px solid var(--line);border-radius:.4rem;padding:.5rem .9rem;flex:1 1 9rem}
.card b{display:block;font-size:1.35rem}code{font-size:.85em;overflow-wrap:anywhere}
svg{width:100%;max-width:38rem;min-width:20rem;height:auto;display:block}svg text{fill:var(--ink);font:12px system-ui,sans-serif}
@media (max-width:40rem){body{padding:.6rem .9rem 3rem}table{font-size:.82rem}th,td{padding:.2rem .4rem}}
@media print{:root{--ink:#000;--soft:#444;--line:#bbb;--paper:#fff;--good:#060;--bad:#900;--bar:#456;--two:#a63}body{font-size:10.5pt;max-width:none;padding:0}
h2{break-after:avoid}tr,.card,svg{break-inside:avoid}.wide{overflow:visible;background:none}.t{min-width:0}table{font-size:8.5pt}th,td{padding:.15rem .4rem}}
"""  # noqa: E501

_SHORT = 30  # characters that a cell may have and stay on one line
_LABEL = 60  # characters of a bar's label


def page(
    summaries: Sequence[Summary],
    comparison: Comparison | None,
    results: Sequence[tuple[str, Document]],
) -> str:
    """The page of one or more runs, a comparison of the first two, and raw results as (file name,
    object).

    Raises:
        UsageError: a raw result of a schema that nothing reads. FormatError: a field is missing
            that its schema promises, or is of another kind.
    """
    parts = []
    if comparison is not None:
        parts.append(_comparison(comparison))
    for summary in summaries:
        parts += [
            _head(summary),
            _accuracy(summary),
            _negative(summary),
            _costs(summary),
            _problems(summary),
            _provenance(summary),
        ]
    for name, document in results:
        result = findings.read(document, name)
        if result is None:
            known = ", ".join(sorted(findings.READERS))
            raise UsageError(
                "no section for this raw result",
                expected=known,
                got=document.get("schema"),
                where=name,
            )
        parts.append(_result(name, result))
    title = " and ".join(summary.run.header.suite.name for summary in summaries) or "Results"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


# -- pieces ----------------------------------------------------------------------------------------


def _table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], mark: int | None = None
) -> str:
    """A table; columns of numbers to the right, short cells on one line, and column `mark` coloured
    by what it says.
    """
    body = [[str(cell) for cell in row] for row in rows]

    def is_number(column: int) -> bool:
        cells = [row[column] for row in body if row[column] not in ("", "-")]
        return bool(cells) and all(
            cell.replace(".", "", 1).replace(",", "").rstrip("%x").isdigit() for cell in cells
        )

    kinds = [
        "n" if is_number(i) else "s" if all(len(row[i]) <= _SHORT for row in body) else "t"
        for i in range(len(headers))
    ]
    head = "".join(
        f"<th{f' class={kind}' if kind else ''}>{escape(h)}</th>"
        for h, kind in zip(headers, kinds, strict=True)
    )
    lines = []
    for row in body:
        cells = []
        for i, cell in enumerate(row):
            kind = cell if i == mark and cell in ("right", "wrong") else kinds[i]
            cells.append(f"<td{f' class={kind}' if kind else ''}>{escape(cell)}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f"<div "
        f'class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _bars(
    rows: Sequence[tuple[str, Sequence[tuple[float, str]]]], unit: str, legend: Sequence[str] = ()
) -> str:
    """Horizontal stacked bars: (label, [(value, colour variable), ...]).

    Raises:
        ValueError: a value that no bar can have.
    """
    if not all(0 <= sum(value for value, _ in parts) < math.inf for _, parts in rows):
        raise ValueError("a value is below zero or not finite")
    rows = [
        (label if len(label) <= _LABEL else label[: _LABEL - 3] + "...", parts)
        for label, parts in rows
    ]
    most = max((sum(value for value, _ in parts) for _, parts in rows), default=0.0) or 1.0
    # Sizes are those of a phone; a wider window scales the picture up a little.
    left, step = 16 + 7 * max((len(label) for label, _ in rows), default=0), 24
    wide = max(480, left + 300)  # long labels leave room for the bars
    top = 22 if legend else 4
    drawn = []
    for i, (label, parts) in enumerate(rows):
        y, x = top + i * step, float(left)
        drawn.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>')
        for value, colour in parts:
            width = (wide - left - 100) * (value / most)
            drawn.append(
                f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0.5):.1f}" height="18" '
                f'style="fill:var(--{colour})"/>'
            )
            x += width
        total = sum(value for value, _ in parts)
        drawn.append(f'<text x="{x + 6:.1f}" y="{y + 14}">{_figure(total)} {escape(unit)}</text>')
    for i, text in enumerate(legend):
        x = left + i * 120
        drawn.append(
            f'<rect x="{x}" y="2" width="12" height="12" style="fill:var(--{("bar", "two")[i]})"/>'
        )
        drawn.append(f'<text x="{x + 18}" y="13">{escape(text)}</text>')
    height = top + len(rows) * step + 4
    return (
        f'<div class="wide"><svg viewBox="0 0 {wide} {height}" width="{wide}" '
        f'role="img">{"".join(drawn)}</svg></div>'
    )


def _figure(value: float) -> str:
    """Four digits or more, never an exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


# -- a run -----------------------------------------------------------------------------------------


def _head(summary: Summary) -> str:
    header = summary.run.header
    settings = header.settings
    joules = (
        f"{summary.joules[0]:,.0f} to {summary.joules[1]:,.0f} J"
        if summary.joules
        else "not measured"
    )
    confident = summary.matrix["confident", "right"], summary.matrix["confident", "wrong"]
    cards = [
        (
            f"{summary.accuracy.k}/{summary.accuracy.n}",
            f"right; Wilson 95 %: {summary.accuracy.low:.1%} to {summary.accuracy.high:.1%}",
        ),
        (f"{confident[0]} and {confident[1]}", "confident: right and wrong"),
        (f"{summary.tokens_out:,}", f"tokens out, {summary.tokens_in:,} in"),
        (f"{summary.seconds:,.0f} s", "in all attempts"),
        (joules, f"energy ({summary.energy_source})" if summary.joules else "energy"),
    ]
    shown = "".join(
        f'<div class="card"><b>{escape(a)}</b><span class="soft">{escape(b)}</span></div>'
        for a, b in cards
    )
    unfinished = (
        ""
        if summary.complete
        else f'<p class="wrong"><b>Not finished: {summary.done} of {summary.total} '
        f"attempts.</b></p>"
    )
    return (
        f"<h1>{escape(header.suite.name)} with {escape(header.engine.model)}</h1>"
        f'<p class="soft">{escape(str(summary.run.path))}: {escape(str(settings.attempts))} '
        f"attempt(s) a problem, temperature "
        f"{escape(str(settings.temperature))}, seed {escape(str(settings.seed))}, started "
        f"{escape(header.created)}</p>"
        f'{unfinished}<div class="cards">{shown}</div>'
    )


def _accuracy(summary: Summary) -> str:
    rows = [
        (confidence, *(summary.matrix[confidence, grade] for grade in ("right", "wrong", "none")))
        for confidence in ("confident", "uncertain")
    ]
    lines = [f"after the vote: {summary.accuracy}", f"single attempts: {summary.single}"]
    lines.append(f"right in at least one attempt: {summary.coverage}")
    lines += [
        f"{route} route alone: {proportion}" for route, proportion in summary.by_route.items()
    ]
    return (
        "<h2>Accuracy</h2>"
        + _list(lines)
        + _table(["problems", "right", "wrong", "no answer"], rows)
    )


def _negative(summary: Summary) -> str:
    """What did not work, before what it cost."""
    sure = [
        result.id
        for result in summary.results
        if result.confidence == "confident" and result.grade == "wrong"
    ]
    cut = sum(p.n_cut for p in summary.passes.values())
    n = sum(p.n for p in summary.passes.values())
    lines = [
        f"confident and wrong: {', '.join(sure) or 'none'}",
        f"generations cut off at their token limit: {cut} of {n}",
        f"no majority: {sum(result.vote == 'no-majority' for result in summary.results)} problems",
    ]
    rows = [
        (route, cause, count)
        for (route, cause), count in sorted(
            summary.causes.items(), key=lambda item: (item[0][0], -item[1])
        )
    ]
    return (
        "<h2>What did not work</h2>"
        + _list(lines)
        + _table(["route", "how it ended", "attempts"], rows)
    )


def _costs(summary: Summary) -> str:
    n = max(len(summary.results), 1)
    rows = [
        (
            name,
            p.n,
            f"{p.n_out / n:.0f}",
            f"{p.n_prefilled / n:.0f}",
            f"{p.n_reused / n:.0f}",
            f"{p.decode_seconds / n:.1f}",
            f"{p.prefill_seconds / n:.1f}",
        )
        for name, p in summary.passes.items()
    ]
    bars = [
        (name, [(float(p.n_out), "bar"), (float(p.n_prefilled), "two")])
        for name, p in summary.passes.items()
    ]
    bill = _bars(bars, "tokens", ("decoded", "prefilled")) if bars else ""
    headers = [
        "pass",
        "generations",
        "tokens out",
        "tokens prefilled",
        "tokens grafted",
        "decoding, s",
        "prefill, s",
    ]
    points = (
        f"{summary.tokens_out / summary.accuracy.k:,.0f} output tokens a right answer"
        if summary.accuracy.k
        else "no right answer"
    )
    return (
        f"<h2>Cost</h2><p>{points}. Means a problem; generations are counts.</p>"
        + _table(headers, rows)
        + bill
    )


def _problems(summary: Summary) -> str:
    rows = [
        (
            r.id,
            "-" if r.answer is None else r.answer,
            r.gold,
            "none" if r.grade == "none" else r.grade,
            r.confidence,
            ", ".join(r.causes).replace(":", ": ").replace("-", " "),
            r.tokens_out,
            f"{r.seconds:.0f}",
        )
        for r in summary.results
    ]
    headers = ["problem", "answer", "gold", "grade", "confidence", "routes", "tokens out", "s"]
    return "<h2>Problems</h2>" + _table(headers, rows, mark=3)


def _provenance(summary: Summary) -> str:
    header = records.plain(summary.run.header)
    rows = [
        ("chain", summary.run.chain),
        ("suite", header["suite"]["sha256"]),
        ("prompts", header["prompts_sha256"]),
        *((f"engine {key}", _value(value)) for key, value in sorted(header["engine"].items())),
        *((f"setting {key}", _value(value)) for key, value in sorted(header["settings"].items())),
        ("router", header["router"]),
        ("rule", header["rule"]),
        ("version", header["version"]),
    ]
    before: Mapping[str, Any] = {}
    for i, session in enumerate(map(records.plain, summary.run.sessions), 1):
        rows += [
            (
                f"session {i} {key}",
                "as before" if i > 1 and value == before.get(key) else _value(value),
            )
            for key in ("started", "python", "system", "cpu", "engine", "sandbox")
            for value in [session.get(key)]
        ]
        before = session
    body = "".join(
        f"<tr><td class=s>{escape(key)}</td><td><code>{escape(value)}</code></td></tr>"
        for key, value in rows
    )
    return (
        f'<h2>Versions and hashes</h2><div class="wide"><table><tbody>{body}</tbody></table></div>'
    )


def _value(value: object) -> str:
    return value if isinstance(value, str) else console.json_line(value)


def _comparison(c: Comparison) -> str:
    lines = [
        f"right: {c.outcomes}",
        f"output tokens a problem, second less first: {c.tokens}",
        f"seconds a problem, second less first: {c.seconds}",
        f"right only in the first: {', '.join(c.lost) or 'none'}",
        f"right only in the second: {', '.join(c.gained) or 'none'}",
    ]
    return (
        f"<h1>{escape(c.before)} against "
        f"{escape(c.after)}</h1><p><b>{escape(c.verdict[0].upper() + c.verdict[1:])}.</b></p>"
        + _list(lines)
        + _table(["changed", "first", "second"], c.changes or [("nothing", "", "")])
    )


# -- raw results -----------------------------------------------------------------------------------


def _result(name: str, result: Result) -> str:
    """What the result says, and a picture where that says more."""
    said = list(result.findings(name))
    tables: dict[tuple[str, ...], list[list[object]]] = {}
    for finding in said:
        if isinstance(finding, findings.Line):
            tables.setdefault(tuple(finding.cells), []).append(list(finding.cells.values()))
    # The same line can speak of two claims.
    sentences = dict.fromkeys(
        finding.text for finding in said if isinstance(finding, findings.Said)
    )
    return (
        f"<h2>{escape(name)}</h2>"
        + _picture(result)
        + (_list(sentences) if sentences else "")
        + "".join(
            _table(columns, [*map(list, dict.fromkeys(map(tuple, rows)))])
            for columns, rows in tables.items()
        )
    )


def _picture(result: Result) -> str:
    if isinstance(result, BenchResult):
        return _timings(result)
    return _bills(result) if isinstance(result, CostResult) else ""


def _timings(result: BenchResult) -> str:
    """Prefill against graft, length by length."""
    lengths = result.by_length()
    modes = [mode for mode in dict.fromkeys(row.mode for row in result.rows) if mode != "fresh"]
    best = next((m for m in modes if "warm" in m and "hashed" in m), modes[0] if modes else "fresh")
    bars = []
    for n, rows in lengths.items():
        if "fresh" not in rows:
            continue
        bars.append((f"{n} tokens, prefill", [(rows["fresh"].median_seconds * 1e3, "bar")]))
        if best != "fresh" and best in rows:
            bars.append((f"graft ({best})", [(rows[best].median_seconds * 1e3, "two")]))
    return _bars(bars, "ms")


def _bills(result: CostResult) -> str:
    """The token bill of each arm, and what a point of it costs; an arm without a right answer has
    no price of a point.
    """
    bill = [(arm.name, [(float(arm.tokens_out), "bar")]) for arm in result.arms]
    point = [
        (arm.name, [(arm.tokens_per_point, "two")])
        for arm in result.arms
        if arm.tokens_per_point is not None
    ]
    drawn = "<p>Output tokens in all:</p>" + _bars(bill, "tokens")
    return drawn + (
        "<p>Output tokens a problem for one percentage point of accuracy:</p>"
        + _bars(point, "tokens")
        if point
        else ""
    )
