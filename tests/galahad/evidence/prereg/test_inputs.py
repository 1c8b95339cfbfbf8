"""What a plan names is hashed, and nothing that could be two things."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from galahad.errors import PreregError
from galahad.evidence import prereg
from galahad.evidence.prereg import inputs
from taliesin.host import filehash


def test_hash_of_a_package_is_that_of_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "some_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    before = inputs.package_sha256("some_package")
    (package / "notes.txt").write_text("no source")
    assert inputs.package_sha256("some_package") == before
    (package / "__init__.py").write_text("x = 1")
    assert inputs.package_sha256("some_package") != before


def test_names_that_would_be_two_lines_of_a_folders_hash_are_refused(tmp_path: Path) -> None:
    (tmp_path / f"a\n{'0' * 64}  b").write_text("")
    with pytest.raises(PreregError, match="line break"):
        inputs.hash_path(tmp_path)


def test_symbolic_links_are_not_hashed(make: Callable[..., Path], tmp_path: Path) -> None:
    plan = make()
    (tmp_path / "data" / "link").symlink_to("/etc/hostname")
    with pytest.raises(PreregError, match="symbolic link"):
        prereg.lock(plan)


def test_hash_of_a_run_leaves_its_cache_out(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "prefixes").mkdir(parents=True)
    (run / "run.jsonl").write_text("x")
    before = inputs.hash_path(run)
    (run / "prefixes" / "index.sqlite3").write_text("y")
    assert inputs.hash_path(run) == before
    (run / "run.jsonl").write_text("z")
    assert inputs.hash_path(run) != before


def test_poisoned_memory_of_hashes_passes_no_changed_model(
    make: Callable[..., Path], tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = prereg.lock(make(models=[tiny_gguf.name]))
    digest = hashlib.sha256(tiny_gguf.read_bytes()).hexdigest()
    monkeypatch.setattr(filehash, "remembered_sha256", lambda _path: digest)
    tiny_gguf.write_bytes(tiny_gguf.read_bytes() + b"changed")
    with pytest.raises(PreregError, match="not as registered"):
        prereg.run(path)
