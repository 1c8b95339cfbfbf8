"""What is refused before a run, and what a run leaves behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from galahad.errors import PreregError
from galahad.evidence import prereg
from galahad.evidence.prereg import files, inputs
from taliesin.errors import StoreFull, UsageError
from taliesin.host import durable


def test_command_that_fails_leaves_a_record_without_a_measurement(
    make: Callable[..., Path],
) -> None:
    path, _ = prereg.lock(
        make(commands=[[sys.executable, "-c", "raise SystemExit(9)"], ["never", "run"]])
    )
    found = prereg.run(path)
    assert [v.held for v in found.verdicts] == [None, None]
    assert [i.what for i in found.items if i.state == "missing"] == ["output out.json"]
    assert json.loads(prereg.record_path(path).read_bytes())["exit_codes"] == [9]


def test_output_that_is_no_run_or_a_link_leaves_a_record(make: Callable[..., Path]) -> None:
    script = "import os; os.mkdir('out.json'); os.mkdir('out'); os.symlink('/', 'out/link')"
    path, _ = prereg.lock(
        make(commands=[[sys.executable, "-c", script]], outputs=["out.json", "out"])
    )
    notes: list[str] = []
    found = prereg.run(path, notes.append)
    assert [v.value for v in found.verdicts] == [None, None]
    assert notes[-1] == "output out: a symbolic link is not hashed"
    assert [(i.what, i.state) for i in found.items if i.state == "missing"] == [
        ("output out", "missing")
    ]


@pytest.mark.parametrize("name", ["measure.py", "data/a.txt", "data/new.txt"])
def test_run_does_not_start_where_a_file_differs(
    make: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    path, _ = prereg.lock(make())
    (tmp_path / name).write_text("other")
    with pytest.raises(PreregError, match="not as registered") as caught:
        prereg.run(path)
    assert f"file {name.split('/', maxsplit=1)[0]}" in caught.value.message
    assert not (tmp_path / "out.json").exists()


def test_run_does_not_start_under_other_prompts_code_or_versions(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = prereg.lock(make())
    versions = "galahad.evidence.prereg.inputs.versions"
    for target in ("galahad.solve.prompts.prompts_sha256", versions):
        with monkeypatch.context() as patch:
            patch.setattr(
                target, (lambda: {"python": "2.7"}) if "versions" in target else (lambda: "0" * 64)
            )
            with pytest.raises(PreregError, match="not as registered"):
                prereg.run(path)
    with monkeypatch.context() as patch:
        patch.setattr(inputs, "package_sha256", lambda _name: "0" * 64)
        with pytest.raises(PreregError, match="package galahad, package taliesin"):
            prereg.run(path)


def test_input_that_changes_during_the_run_is_found(make: Callable[..., Path]) -> None:
    touch = [sys.executable, "-c", "open('data/a.txt', 'w').write('b')"]
    path, _ = prereg.lock(make(commands=[touch]))
    with pytest.raises(PreregError, match="file data: not as registered"):
        prereg.run(path)
    assert not prereg.record_path(path).exists()


def test_outputs_before_the_run_and_second_runs_are_refused(
    make: Callable[..., Path], tmp_path: Path
) -> None:
    plan = make()
    (tmp_path / "out.json").write_text("{}")
    with pytest.raises(PreregError, match="before the run"):
        prereg.lock(plan)
    (tmp_path / "out.json").unlink()
    path, _ = prereg.lock(plan)
    with pytest.raises(UsageError, match="locked already"):
        prereg.lock(plan)
    prereg.run(path)
    with pytest.raises(PreregError, match="run already"):
        prereg.run(path)


def test_command_that_cannot_be_started_leaves_a_record(make: Callable[..., Path]) -> None:
    path, _ = prereg.lock(make(commands=[[sys.executable, "measure.py", 8], ["no-such-program"]]))
    assert [v.held for v in prereg.run(path).verdicts] == [None, None]
    assert json.loads(prereg.record_path(path).read_bytes())["exit_codes"] == [0, 127]


def test_one_process_at_a_time_locks_and_runs_a_plan(make: Callable[..., Path]) -> None:
    plan = make()
    with files.alone(plan, "being locked"), pytest.raises(PreregError, match="being locked"):
        prereg.lock(plan)
    path, _ = prereg.lock(plan)
    with files.alone(path, "being run"), pytest.raises(PreregError, match="being run"):
        prereg.run(path)
    assert prereg.run(path).intact


def test_record_that_cannot_be_written_is_found_before_the_run(
    make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = prereg.lock(make())

    def full(_path: Path) -> None:
        raise StoreFull("no space")

    monkeypatch.setattr(durable, "require_output", full)
    with pytest.raises(StoreFull):
        prereg.run(path)
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("change", ["edited", "removed"])
def test_plan_that_changed_after_the_lock_is_refused_before_the_first_command(
    make: Callable[..., Path], tmp_path: Path, change: str
) -> None:
    plan = make()
    path, _ = prereg.lock(plan)
    if change == "edited":
        plan.write_text(plan.read_text() + "\n# a word\n")
    else:
        plan.unlink()
    with pytest.raises(PreregError, match="plan: not as registered"):
        prereg.run(path)
    assert not (tmp_path / "out.json").exists()
