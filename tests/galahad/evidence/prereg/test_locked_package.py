"""A command of ours runs from the locked source, whatever lies elsewhere."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from galahad.evidence import prereg
from galahad.evidence.prereg import locked_package
from tests.galahad.evidence.prereg.plans import FORGER


@pytest.mark.parametrize("command", [["galahad"], [sys.executable, "-m", "galahad"]])
def test_folder_beside_the_plan_never_runs_in_place_of_the_locked_package(
    make: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
) -> None:
    elsewhere = tmp_path / "elsewhere"
    for shadow in (tmp_path / "galahad", elsewhere / "galahad", tmp_path / "taliesin"):
        shadow.mkdir(parents=True)
        (shadow / "__init__.py").write_text(FORGER)
        (shadow / "__main__.py").write_text(FORGER)
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    path, _ = prereg.lock(make(commands=[[*command, "--version"]]))
    found = prereg.run(path)
    assert not (tmp_path / "out.json").exists()
    assert prereg.failed(found.verdicts)
    record = json.loads(prereg.record_path(path).read_bytes())
    assert record["exit_codes"] == [0]
    assert "galahad/__main__.py" in record["code"][0]
    assert "code of command 1" in [i.what for i in found.items if i.state == "same"]


def test_byte_code_in_a_cache_never_runs_in_place_of_the_locked_source(tmp_path: Path) -> None:
    package = tmp_path / "some"
    package.mkdir()
    source = package / "__init__.py"
    source.write_text("word = 'ok'\n")
    (package / "__main__.py").write_text("import some; print(some.word)\n")
    cached = importlib.util.cache_from_source(str(source))
    code = compile("word = 'no'\n", str(source), "exec")
    status = source.stat()
    Path(cached).parent.mkdir()
    Path(cached).write_bytes(
        importlib._bootstrap_external._code_to_timestamp_pyc(  # type: ignore[attr-defined]
            code, int(status.st_mtime), status.st_size
        )
    )
    folders, report = json.dumps({"some": str(package)}), tmp_path / "report"
    plain = subprocess.run(
        [sys.executable, "-m", "some"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    safe = subprocess.run(
        [sys.executable, "-P", "-E", locked_package.__file__, folders, str(report), "some"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (plain.stdout, safe.stdout) == ("no\n", "ok\n")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert f"{digest}  some/__init__.py" in report.read_text().splitlines()
