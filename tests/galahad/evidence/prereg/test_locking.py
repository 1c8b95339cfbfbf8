"""A lock is written once, and git may keep it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from galahad.errors import PreregError
from galahad.evidence import prereg
from taliesin.errors import ModelError, UsageError


def test_plan_of_another_ending_is_refused_because_its_lock_would_not_find_it(
    make: Callable[..., Path],
) -> None:
    plan = make()
    with pytest.raises(UsageError, match=r"ends in \.yaml"):
        prereg.lock(plan.rename(plan.with_suffix(".yml")))


def test_name_that_is_too_long_is_one_error(make: Callable[..., Path]) -> None:
    with pytest.raises(PreregError, match="not there"):
        prereg.lock(make(files=["x" * 5000]))
    with pytest.raises(ModelError):
        prereg.lock(make(models=["x" * 5000]))


def test_lock_can_be_committed_and_tagged(make: Callable[..., Path], tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "--quiet"], cwd=tmp_path, check=True)
    for key, value in (("user.name", "t"), ("user.email", "t@example.org")):
        subprocess.run(["git", "config", key, value], cwd=tmp_path, check=True)
    path, digest = prereg.lock(make())
    prereg.commit(path, "prereg-1")
    log = subprocess.run(
        ["git", "log", "-1", "--format=%s", "prereg-1"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert log.stdout.strip() == f"Preregister plan.yaml: lock {digest}"
    with pytest.raises(PreregError, match="git refused"):
        prereg.commit(path, "prereg-1")


def test_git_that_refuses_is_one_error_and_the_lock_stays(
    make: Callable[..., Path], tmp_path: Path
) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("*.lock.json\n")
    path, digest = prereg.lock(make())
    with pytest.raises(PreregError) as caught:
        prereg.commit(path, None)
    assert "plan.lock.json" in str(caught.value.got)
    assert prereg.check(path, f" {digest.upper()}\n").intact
