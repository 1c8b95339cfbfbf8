"""Documents that cannot drift from the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import typer

import galahad.cli
import taliesin.cli

ROOT = Path(__file__).parent.parent.parent
APPS = {"taliesin": taliesin.cli.app, "galahad": galahad.cli.app}


def test_help_imports_no_engine_and_no_numbers() -> None:
    code = (
        "import sys, taliesin.cli, galahad.cli\n"
        "heavy = {'llama_cpp', 'numpy', 'scipy', 'sympy', 'matplotlib', 'bm25s', 'jinja2'} & "
        "set(sys.modules)\n"
        "sys.exit(','.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_every_command_takes_json() -> None:
    def without_json(command: Any, path: str) -> list[str]:
        below = getattr(command, "commands", {})
        if below:
            return [
                line
                for name, child in below.items()
                for line in without_json(child, f"{path} {name}")
            ]
        return [] if any("--json" in option.opts for option in command.params) else [path]

    assert [
        line
        for name, app in APPS.items()
        for line in without_json(typer.main.get_command(app), name)
    ] == []


def test_the_readme_names_every_command() -> None:
    rows = [
        line
        for line in (ROOT / "README.md").read_text("utf-8").splitlines()
        if line.startswith("|")
    ]
    for name, app in APPS.items():
        own = "".join(row for row in rows if f"`{name} " in row)
        verbs = getattr(typer.main.get_command(app), "commands", {})
        assert [
            verb for verb in verbs if f"`{verb}`" not in own and f"`{name} {verb}`" not in own
        ] == []
