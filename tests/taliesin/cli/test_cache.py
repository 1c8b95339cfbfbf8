"""`taliesin cache`: exit codes, stdout and stderr of each verb."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from taliesin import cli
from taliesin.host import console
from tests.taliesin.store.test_piecefolder import trunk

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(console, "_quiet", False)

    def call(*arguments: str, folder: Path | None = None) -> tuple[int, str, str]:
        verb = ["cache", *arguments, "--cache-folder", str(folder or tmp_path / "p")]
        monkeypatch.setattr(sys, "argv", ["taliesin", *verb])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, captured.out, captured.err

    return call


def test_an_empty_cache_is_no_error(run: Run) -> None:
    assert run("list")[:2] == (0, "")
    assert json.loads(run("size", "--json")[1])["bytes"] == 0
    assert run("clear")[0] == 0
    assert run("export", "x.tar")[0] == 2


def test_chains_are_listed_and_sized(run: Run, tmp_path: Path) -> None:
    folder, first, branch, other = trunk(tmp_path / "p")
    code, out, _ = run("list", "--json")
    assert code == 0
    chains = json.loads(out)["chains"]
    assert {c["chain"] for c in chains} == {first[4][0], branch[1][0], other[3][0]}
    assert sum(c["shared_pieces"] for c in chains) == 6
    assert first[4][0][:12] in run("list")[1]
    size = json.loads(run("size", "--json")[1])
    assert (size["pieces"], size["bytes"]) == (11, sum(h.n_bytes for h in folder.held()))


def test_gc_keeps_what_is_pinned_and_says_if_that_is_too_much(run: Run, tmp_path: Path) -> None:
    folder, _, _, other = trunk(tmp_path / "p")
    name = other[3][0]
    assert run("pin", name[:10])[0] == 0
    assert run("gc", "--budget", "0", "--dry-run")[0] == 3
    assert len(folder.held()) == 11
    code, out, _ = run("gc", "--budget", "0", "--json")
    assert (code, json.loads(out)["removed"]) == (3, 7)
    assert run("unpin", name[:10])[0] == 0
    assert run("gc", "--budget", "0")[0] == 0
    assert run("pin", "0" * 12)[0] == 10
    assert run("gc", "--budget", "much")[0] == 2


def test_a_check_finds_damage_and_repairs_it(run: Run, tmp_path: Path) -> None:
    folder, first, _, _ = trunk(tmp_path / "p")
    assert run("check")[0] == 0
    path = folder.path(first[0][0])
    path.write_bytes(path.read_bytes()[:-1])
    code, out, _ = run("check", "--json")
    found = json.loads(out)
    assert (code, list(found["damaged"]), len(found["orphans"])) == (3, [first[0][0]], 6)
    assert run("check", "--repair")[0] == 0
    assert run("check")[0] == 0
    assert len(folder.held()) == 4


def test_chains_are_exported_and_taken_in(run: Run, tmp_path: Path) -> None:
    _, first, _, _ = trunk(tmp_path / "p")
    out = str(tmp_path / "warm.tar")
    assert run("export", out, first[4][0])[0] == 0
    code, said, _ = run("import", out, "--json", folder=tmp_path / "q")
    assert (code, json.loads(said)["new"]) == (0, 5)
    assert run("import", str(tmp_path / "none"), folder=tmp_path / "q")[0] == 10
    assert run("export", str(tmp_path / "no" / "x.tar"))[0] == 2


def test_clear_asks_first(run: Run, tmp_path: Path) -> None:
    folder, _, _, other = trunk(tmp_path / "p")
    folder.pin(other[3][0], True)
    assert run("clear")[0] == 2  # no terminal to ask on
    assert len(folder.held()) == 11
    assert run("clear", "--yes")[0] == 0
    assert (folder.held(), folder.pins()) == ([], frozenset())
