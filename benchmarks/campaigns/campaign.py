"""What all campaigns share: numbered cases from a seed, rows as JSON lines, going on after a stop.

Promises: case number K of a kind is the same whenever it is run (`case_rng`); a row is written as
soon as its case has ended, and a case whose row is there is not run again; the exit code is 3 as
soon as any row is wrong, lost, crashed or escaped.
Deliberately does not know: what a case does.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from taliesin.errors import EXIT_NO, EXIT_OK, ToolkitError, UsageError
from taliesin.host import console, machine, records
from taliesin.host.records import Record

# held: refused with one error, or without effect; the others are the columns of the table.
Outcome = Literal["held", "unprotected", "wrong", "lost", "crashed", "escaped"]
BAD: tuple[Outcome, ...] = ("wrong", "lost", "crashed", "escaped")


class Header(Record, frozen=True, kw_only=True):
    """The first line of a raw result."""

    SCHEMA = "taliesin.campaign/1"
    schema: Literal["taliesin.campaign/1"] = "taliesin.campaign/1"
    campaign: str
    seed: int
    machine: dict[str, Any]


class Row(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One case. detail: what was done to what, and what came of it."""

    kind: str
    case: int
    outcome: Outcome
    detail: str = ""


class Result(NamedTuple):
    """A raw result, read back."""

    header: Header
    rows: list[Row]


Case = Callable[[random.Random], tuple[Outcome, str]]
"""Runs one case with its own random numbers: what came of it, and what it was."""

Kinds = Mapping[str, Callable[[Path], AbstractContextManager[Case]]]
"""Each kind of a campaign: called with an empty folder, gives a context in which cases run."""


def case_rng(seed: int, kind: str, case: int) -> random.Random:
    return random.Random(f"{seed}/{kind}/{case}")


def read(path: Path) -> Result:
    """The raw result at `path`, plain or gzipped; a torn last line is left out.

    Raises:
        FormatError: a line is not as its type says.
    """
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = raw[: raw.rfind(b"\n") + 1].splitlines()
    header = records.decode(lines[0], Header, what="the campaign's header", where=path)
    return Result(
        header,
        [records.decode(line, Row, what="a row of the campaign", where=path) for line in lines[1:]],
    )


def attempt(case: Case, rng: random.Random) -> tuple[Outcome, str]:
    """The case's outcome; an exception that is not of our tree is a crash."""
    try:
        return case(rng)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return "crashed", f"{type(error).__name__}: {error} at {place}"[:300]


def main(name: str, about: str, kinds: Kinds, *, n: int, folder: Callable[[], Any]) -> int:
    """Run a campaign as a command.

    n: cases of each kind if not said otherwise; folder: a context that gives an empty folder.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=n, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=sorted(kinds), default=list(kinds))
    parser.add_argument("--out", type=Path, help="rows are appended; what is there is not run")
    parser.add_argument("--case", type=int, help="run this case alone, and print its row")
    parser.add_argument("--seconds", type=float, help="stop after so long; run again to go on")
    given = parser.parse_args()
    try:
        return _run(name, kinds, given, folder)
    except ToolkitError as error:
        console.report_error(error, as_json=False)
        return error.exit_code


def _run(name: str, kinds: Kinds, given: argparse.Namespace, folder: Callable[[], Any]) -> int:
    rows: list[Row] = []
    if given.out is not None and given.case is None:
        rows = _begun(given.out, name, given.seed)
    done = {(row.kind, row.case) for row in rows}
    started = time.monotonic()
    todo: dict[str, Sequence[int]] = {
        kind: [given.case]
        if given.case is not None
        else [case for case in range(given.n) if (kind, case) not in done]
        for kind in given.kinds
    }
    with console.progress(name, sum(map(len, todo.values())), "cases") as advance:
        for row in _rows(kinds, todo, given.seed, folder):
            rows.append(row)
            if given.case is not None:
                console.out(console.json_line(records.plain(row)))
            elif given.out is not None:
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(_line(row))
            if row.outcome in BAD:
                print(f"{row.kind} {row.case}: {row.outcome}: {row.detail}", file=sys.stderr)
            advance(1)
            if given.seconds is not None and time.monotonic() - started > given.seconds:
                console.note("time is up; run again to go on")
                break
    if given.case is None:
        console.out(console.table(["kind", "n", "held", "unprotected", *BAD], summary(rows)))
    return EXIT_NO if any(row.outcome in BAD for row in rows) else EXIT_OK


def _rows(
    kinds: Kinds, todo: Mapping[str, Sequence[int]], seed: int, folder: Callable[[], Any]
) -> Iterator[Row]:
    for kind, cases in todo.items():
        if not cases:
            continue
        with folder() as path, kinds[kind](Path(path)) as case:
            for number in cases:
                outcome, detail = attempt(case, case_rng(seed, kind, number))
                yield Row(kind=kind, case=number, outcome=outcome, detail=detail)


def _begun(path: Path, name: str, seed: int) -> list[Row]:
    """The rows that are there; a new file gets its header, a torn last line is cut off."""
    if not path.exists() or not path.stat().st_size:
        header = Header(campaign=name, seed=seed, machine=machine.describe())
        path.write_text(_line(header), encoding="utf-8")
        return []
    raw = path.read_bytes()
    if not raw.endswith(b"\n"):
        path.write_bytes(raw[: raw.rfind(b"\n") + 1])
    result = read(path)
    if (result.header.campaign, result.header.seed) != (name, seed):
        raise UsageError(
            "the file is of another campaign",
            expected=f"{name}, seed {seed}",
            got=f"{result.header.campaign}, seed {result.header.seed}",
            where=path,
        )
    return result.rows


def _line(record: Record) -> str:
    return json.dumps(records.plain(record), ensure_ascii=True) + "\n"


def summary(rows: Sequence[Row]) -> list[list[object]]:
    """For each kind: n, and how many of each outcome."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row.kind, Counter())[row.outcome] += 1
    return [
        [kind, c.total(), c["held"], c["unprotected"], *(c[bad] for bad in BAD)]
        for kind, c in counts.items()
    ]
