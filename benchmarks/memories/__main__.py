"""`python -m benchmarks.memories NAME PATH [--seed N] [--tokenizer]`, or `--list [--json]`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from . import FAMILIES, write


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="?", choices=sorted(FAMILIES), metavar="NAME")
    parser.add_argument("path", nargs="?", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer", action="store_true", help="a byte tokenizer, to speak with")
    parser.add_argument("--list", action="store_true", help="the families, a line each")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.list:
        rows = [
            {"name": f.name, "architecture": f.architecture, "memory": f.memory, "note": f.note}
            for f in FAMILIES.values()
        ]
        if given.json:
            print(json.dumps(rows, indent=1))
        else:
            for row in rows:
                print(f"{row['name']:16}{row['architecture']:16}{row['memory']:20}{row['note']}")
        return 0
    if given.path is None:
        parser.error("expected NAME PATH, or --list")
    path = write(FAMILIES[given.name], given.path, given.seed, tokenizer=given.tokenizer)
    print(json.dumps({"path": str(path)}) if given.json else path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
