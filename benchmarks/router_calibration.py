"""The router's threshold: chosen on half of our own questions, tried on the other half, in
libraries of three sizes.

    python benchmarks/router_calibration.py

Reads data/router/ (30 documents with three questions each; 60 questions that no document answers,
20 of them close in wording). Documents with an odd number and every other outside question are
*held in*: the threshold is the middle of the widest gap that loses the fewest of them. The rest is
*held out* and only counted. The same questions are then asked in libraries of 10, 1,000 and 10,000
blocks, filled up with generated texts, and timed. Writes benchmarks/results/router_calibration.json
and .md.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from scipy import stats

from taliesin.ask.router import THRESHOLD, Document, Router
from taliesin.cli.bench import write_results
from taliesin.host import machine
from taliesin.host.places import data_dir
from taliesin.measure import corpus

OUT = Path(__file__).parent / "results" / "router_calibration"
SIZES = (10, 1_000, 10_000)
FILLER_SENTENCES = 60


class Asked(NamedTuple):
    """A question, the document that answers it (None: no document does), and whether the threshold
    may be chosen by it.
    """

    question: str
    answer: str | None
    kind: str
    held_in: bool


class Seen(NamedTuple):
    """What the router made of a question without a threshold."""

    asked: Asked
    best: str | None
    coverage: float
    tie: bool
    seconds: float

    def routed(self, threshold: float) -> str | None:
        return self.best if self.coverage >= threshold and not self.tie else None


def load() -> tuple[list[Document], list[Asked]]:
    folder = data_dir() / "router"
    documents, questions = [], []
    for number, line in enumerate(
        (folder / "library.jsonl").read_text(encoding="utf-8").splitlines()
    ):
        row = json.loads(line)
        documents.append(Document(row["id"], row["id"], row["title"], row["text"]))
        questions += [Asked(q, row["id"], "inside", number % 2 == 0) for q in row["questions"]]
    for number, line in enumerate(
        (folder / "outside.jsonl").read_text(encoding="utf-8").splitlines()
    ):
        row = json.loads(line)
        questions.append(Asked(row["question"], None, f"outside, {row['kind']}", number % 2 == 0))
    return documents, questions


def look(router: Router, questions: Sequence[Asked]) -> list[Seen]:
    seen = []
    for asked in questions:
        started = time.perf_counter()
        route = router.route(asked.question, threshold=0.0)
        seconds = time.perf_counter() - started
        best = route.candidates[0] if route.candidates else None
        tie = bool(route.candidates) and route.block is None
        seen.append(
            Seen(asked, best and best.block_id, best.coverage if best else 0.0, tie, seconds)
        )
    return seen


def calibrate(seen: Sequence[Seen]) -> tuple[float, int]:
    """The threshold with the fewest mistakes on `seen`, in the middle of its range, and how many
    mistakes it makes.
    """
    points = sorted({0.0, 1.0, *(s.coverage for s in seen)})
    middles = [(a + b) / 2 for a, b in pairwise(points)]
    mistakes = {m: sum(s.routed(m) != s.asked.answer for s in seen) for m in middles}
    fewest = min(mistakes.values())
    best = [m for m in middles if mistakes[m] == fewest]
    low = max((p for p in points if p < best[0]), default=0.0)
    high = min((p for p in points if p > best[-1]), default=1.0)
    return (low + high) / 2, fewest


def share(right: int, total: int) -> dict[str, Any]:
    interval = stats.binomtest(right, total).proportion_ci(method="wilson") if total else None
    return {
        "right": right,
        "of": total,
        "wilson_95": [interval.low, interval.high] if interval else None,
    }


def count(seen: Sequence[Seen], threshold: float) -> dict[str, Any]:
    inside = [s for s in seen if s.asked.answer is not None]
    outside = [s for s in seen if s.asked.answer is None]
    return {
        "inside_routed_right": share(
            sum(s.routed(threshold) == s.asked.answer for s in inside), len(inside)
        ),
        "inside_routed_wrong": sum(
            s.routed(threshold) not in (None, s.asked.answer) for s in inside
        ),
        "outside_abstained": share(sum(s.routed(threshold) is None for s in outside), len(outside)),
    }


def main() -> None:
    documents, questions = load()
    seen = look(Router(documents), questions)
    threshold, mistakes = calibrate([s for s in seen if s.asked.held_in])
    held_out = [s for s in seen if not s.asked.held_in]
    sizes = []
    for size in SIZES:
        own = documents[: min(size, len(documents))]
        filler = [
            Document(f"f{i}", f"f{i}", "", corpus.passage(7, i, FILLER_SENTENCES))
            for i in range(size - len(own))
        ]
        started = time.perf_counter()
        router = Router([*own, *filler])
        build_seconds = time.perf_counter() - started
        ids = {d.block_id for d in own}
        # a question whose document is not in the small library is one more question from outside
        there = [
            q
            if q.answer is None or q.answer in ids
            else q._replace(answer=None, kind="outside, left out")
            for q in questions
        ]
        found = look(router, there)
        times = sorted(s.seconds for s in found)
        sizes.append(
            {
                "blocks": size,
                "build_seconds": build_seconds,
                "query_median_ms": statistics.median(times) * 1e3,
                "query_p99_ms": times[int(0.99 * (len(times) - 1))] * 1e3,
                "query_max_ms": times[-1] * 1e3,
                **count([s for s in found if not s.asked.held_in], THRESHOLD),
            }
        )
    fields = {
        "threshold_calibrated": threshold,
        "threshold_used": THRESHOLD,
        "held_in": {**count([s for s in seen if s.asked.held_in], threshold), "mistakes": mistakes},
        "held_out": count(held_out, THRESHOLD),
        "sizes": sizes,
        "machine": machine.describe(),
        "questions": [
            {
                "question": s.asked.question,
                "kind": s.asked.kind,
                "held_in": s.asked.held_in,
                "answer": s.asked.answer,
                "best": s.best,
                "coverage": s.coverage,
                "routed": s.routed(THRESHOLD),
            }
            for s in seen
        ],
    }
    write_results(OUT, "taliesin.bench.router-calibration/1", fields, page(fields))
    sys.stdout.write(page(fields))


def _share(value: dict[str, Any]) -> str:
    low, high = value["wilson_95"]
    return (
        f"{value['right']}/{value['of']} = {value['right'] / value['of']:.1%} ({low:.1%} to "
        f"{high:.1%})"
    )


def page(fields: dict[str, Any]) -> str:
    lines = [
        "# The router's threshold",
        "",
        f"Calibrated on the held-in half: {fields['threshold_calibrated']:.3f} "
        f"({fields['held_in']['mistakes']} mistakes there); "
        f"in use: {fields['threshold_used']:.2f}. Intervals are Wilson's, 95 %. A library of 10 "
        f"blocks lacks most documents, so "
        "their questions come from outside there.",
        "",
        "| held-out questions, library of | inside, right | inside, wrong | outside, abstained | "
        "median ms | p99 ms | largest ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = [{"blocks": 30, **fields["held_out"]}, *fields["sizes"]]
    for row in rows:
        timing = [
            f"{row[key]:.2f}" if key in row else ""
            for key in ("query_median_ms", "query_p99_ms", "query_max_ms")
        ]
        lines.append(
            f"| {row['blocks']} | {_share(row['inside_routed_right'])} | "
            f"{row['inside_routed_wrong']} | "
            f"{_share(row['outside_abstained'])} | " + " | ".join(timing) + " |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
