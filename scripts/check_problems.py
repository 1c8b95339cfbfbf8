#!/usr/bin/env python3
"""Run all three ways of every problem in data/problems, and of variants with other numbers, in the
sandbox.

    python scripts/check_problems.py            compare with data/problems/checked.json; exit 3 if
                                                anything differs
    python scripts/check_problems.py --write    and write it anew
    python scripts/check_problems.py ID ...     only these problems, compared

The record holds hashes, answers and rejected draws but no times, so that it comes out the same on
every machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from galahad import sandbox
from galahad.problems import templates
from taliesin.errors import EXIT_NO, ToolkitError
from taliesin.host import console

RECORD = Path(__file__).resolve().parent.parent / "data" / "problems" / "checked.json"
SEED = 1
VARIANTS = 3
LIMITS = sandbox.Limits(wall_seconds=20, cpu_seconds=2)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument(
        "--write", action="store_true", help="write checked.json anew (all problems only)"
    )
    arguments = parser.parse_args()
    if arguments.write and arguments.ids:
        parser.error("--write checks all problems")
    chosen = [t for t in templates.read_all() if not arguments.ids or t.id in arguments.ids]
    unknown = set(arguments.ids) - {t.id for t in chosen}
    if unknown:
        parser.error(f"no problem {', '.join(sorted(unknown))}")
    kept: dict[str, Any] = (
        json.loads(RECORD.read_text(encoding="utf-8"))["problems"] if RECORD.exists() else {}
    )
    records = {}
    failed = []
    with console.progress("problems", len(chosen), "problems") as advance:
        for template in chosen:
            record = templates.record(
                template, lambda s: sandbox.run(s, limits=LIMITS), seed=SEED, count=VARIANTS
            )
            records[template.id] = record
            trouble = "" if record["agreed"] else f"NOT AGREED {record['reason']}"
            if record["agreed"] and not arguments.write and record != kept.get(template.id):
                trouble = "differs from checked.json"
            if trouble:
                failed.append(template.id)
            variants = ", ".join(str(variant["answer"]) for variant in record["variants"])
            console.out(
                f"{template.id}: {trouble or 'agreed'}, answer {record['answer']}, variants "
                f"{variants}"
            )
            advance(1)
    if arguments.write:
        RECORD.write_text(templates.dumps(records, seed=SEED, count=VARIANTS), encoding="utf-8")
    console.note(
        f"{len(chosen) - len(failed)} of {len(chosen)} agreed, {len(failed)} not "
        f"({sandbox.probe().level})"
    )
    return EXIT_NO if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToolkitError as error:
        console.report_error(error, as_json=False)
        sys.exit(error.exit_code)
