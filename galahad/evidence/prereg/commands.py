"""Start a command of a plan; ours from the locked source alone, with a list of what it imported.

Deliberately does not know: which source is the right one (`checking`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from galahad.evidence.prereg import locked_package
from galahad.evidence.prereg.inputs import PACKAGES, package_folder


def call(
    words: Sequence[str], root: Path, note: Callable[[str], None]
) -> tuple[int, dict[str, str] | None]:
    """The exit code, and the SHA-256 of every source file of ours that was imported; None for a
    program that is not ours. A shell's 127 where there is no such program: what was run before it
    has its record.
    """
    ours = our_command(words)
    if ours is None:
        return _start(words, root, note), None
    folders = {name: str(package_folder(name)) for name in PACKAGES}
    with tempfile.TemporaryDirectory(prefix="galahad-prereg-") as scratch:
        report = Path(scratch) / "imported"
        runner = [sys.executable, "-P", "-E", locked_package.__file__, json.dumps(folders)]
        # For what the command starts itself, such as a worker with `python -m taliesin...`.
        parents = dict.fromkeys(str(Path(folder).parent) for folder in folders.values())
        safe = {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(parents)}
        exit_code = _start([*runner, str(report), *ours], root, note, safe)
        lines = report.read_text("utf-8", "surrogateescape") if report.exists() else ""
    return exit_code, {line[66:]: line[:64] for line in lines.splitlines()}


def our_command(words: Sequence[str]) -> Sequence[str] | None:
    """The words from the package's name on, where a command is ours: `galahad ...`, or the same
    as `python -m galahad ...`.
    """
    if words[0] in PACKAGES:
        return words
    if (
        len(words) > 2
        and Path(words[0]).name.startswith("python")
        and words[1] == "-m"
        and words[2] in PACKAGES
    ):
        return words[2:]
    return None


def _start(
    words: Sequence[str],
    root: Path,
    note: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
) -> int:
    env = {**os.environ, **(variables or {})}
    try:
        return subprocess.run(words, cwd=root, check=False, stdout=2, env=env).returncode
    except OSError as error:
        note(f"{words[0]} cannot be started: {error.strerror}")
        return 127
