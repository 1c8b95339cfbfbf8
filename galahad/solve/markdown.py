"""A run as a page of Markdown: `run.md.j2` has its text, this module the rows of its tables.

Deliberately computes no figure of its own, means a problem aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from galahad.solve.summary import Summary
from taliesin.host import console

_TEMPLATE = Path(__file__).with_name("run.md.j2")
_Row = tuple[object, ...]


def markdown(summary: Summary) -> str:
    """The report as Markdown."""
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Markdown, not HTML; the tables escape their cells
    )
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        summary=summary,
        header=summary.run.header,
        settings=summary.run.header.settings,
        savings=summary.savings,
        table=console.markdown_table,
        matrix=list(_matrix(summary)),
        passes=list(_passes(summary)),
        causes=list(_causes(summary)),
        problems=list(_problems(summary)),
    )


def _matrix(summary: Summary) -> Iterator[_Row]:
    for confidence in ("confident", "uncertain"):
        counts = (summary.matrix[confidence, grade] for grade in ("right", "wrong", "none"))
        yield (confidence, *counts)


def _passes(summary: Summary) -> Iterator[_Row]:
    n_problems = max(len(summary.results), 1)
    for name, totals in summary.passes.items():
        yield (
            name,
            totals.n,
            f"{totals.n_out / n_problems:.0f}",
            f"{(totals.n_prefilled + totals.n_reused) / n_problems:.0f}",
            f"{totals.n_cut}",
            f"{totals.decode_seconds / n_problems:.1f}",
            f"{totals.prefill_seconds / n_problems:.1f}",
        )


def _causes(summary: Summary) -> Iterator[_Row]:
    ends = sorted(summary.causes.items(), key=lambda item: (item[0][0], -item[1]))
    for (route, cause), n in ends:
        yield route, cause, n


def _problems(summary: Summary) -> Iterator[_Row]:
    for result in summary.results:
        yield (
            result.id,
            "-" if result.answer is None else result.answer,
            result.gold,
            result.grade if result.vote != "no-majority" else "no majority",
            result.confidence,
            ", ".join(result.causes),
            result.tokens_out,
            f"{result.seconds:.0f}",
        )
