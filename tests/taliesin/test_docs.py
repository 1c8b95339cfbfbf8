"""Documents that cannot drift from the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_command_reference_is_what_the_commands_say() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_docs.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_help_imports_no_engine_and_no_numbers() -> None:
    code = (
        "import sys, taliesin.cli, galahad.cli\n"
        "heavy = {'llama_cpp', 'numpy', 'scipy', 'sympy', 'matplotlib', 'bm25s', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(','.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_taliesin_never_imports_galahad() -> None:
    upward = [
        path
        for path in (ROOT / "taliesin").rglob("*.py")
        if any(line.startswith(("import galahad", "from galahad")) for line in path.read_text("utf-8").splitlines())
    ]
    assert upward == []


def test_only_one_module_imports_llama_cpp() -> None:
    importers = [
        path.name
        for package in ("taliesin", "galahad")
        for path in (ROOT / package).rglob("*.py")
        if any(
            line.strip().startswith(("import llama_cpp", "from llama_cpp"))
            for line in path.read_text("utf-8").splitlines()
        )
    ]
    assert importers == ["llama.py"]
