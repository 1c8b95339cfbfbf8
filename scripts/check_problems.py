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
import sys
from pathlib import Path

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
    kept = templates.read_checked(RECORD).problems if RECORD.exists() else {}
    checked = {}
    failed = []
    with console.progress("problems", len(chosen), "problems") as advance:
        for template in chosen:
            record = templates.check(
                template, lambda s: sandbox.run(s, limits=LIMITS), seed=SEED, count=VARIANTS
            )
            checked[template.id] = record
            trouble = "" if record.agreed else f"NOT AGREED {record.reason}"
            if record.agreed and not arguments.write and record != kept.get(template.id):
                trouble = "differs from checked.json"
            if trouble:
                failed.append(template.id)
            variants = ", ".join(str(variant.answer) for variant in record.variants)
            console.out(
                f"{template.id}: {trouble or 'agreed'}, answer {record.answer}, variants {variants}"
            )
            advance(1)
    if arguments.write:
        whole = templates.Checked(seed=SEED, variants=VARIANTS, problems=checked)
        RECORD.write_text(whole.text(), encoding="utf-8")
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
