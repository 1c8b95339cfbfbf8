"""A plan to test with, and its commands."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import yaml

SCRIPT = (
    "import json, sys\njson.dump({'n': 10, 'right': int(sys.argv[1]), 'arms': [{'p': 0.5}]}, "
    "open('out.json', 'w'))\n"
)

FORGER = (
    "import json; json.dump({'n': 10, 'right': 10, 'arms': [{'p': 0.5}]}, open('out.json', 'w'))"
)


def plan_fields(right: int = 8, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "title": "A test",
        "files": ["measure.py", "data"],
        "matrix": {"seed": [0, 1]},
        "commands": [[sys.executable, "measure.py", right]],
        "outputs": ["out.json"],
        "predictions": [
            {
                "statement": "most are right",
                "from": "out.json",
                "field": "right / n",
                "operator": ">",
                "value": 0.5,
            },
            {
                "statement": "no effect",
                "from": "out.json",
                "field": "arms.0.p",
                "operator": ">=",
                "value": 0.05,
            },
        ],
    }
    return fields | changes


def write_plan(folder: Path, right: int = 8, **changes: Any) -> Path:
    """The plan in a folder, with the files that it names."""
    (folder / "measure.py").write_text(SCRIPT)
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "a.txt").write_text("a")
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan_fields(right, **changes)))
    return path


def still(name: str) -> str:
    """A hash for the source of a package that does not change, whoever is editing it."""
    return hashlib.sha256(name.encode()).hexdigest()
