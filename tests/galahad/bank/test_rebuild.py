"""The nightly rebuild of a bank: programs are run again, blocks proved or computed anew, and a kill
at any step loses nothing.
"""

from __future__ import annotations

import errno
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import filelock
import pytest
from msgspec import structs

from galahad import cli, sandbox
from galahad.answerer.embedded import Embedded
from galahad.bank.bank import Bank
from galahad.bank.check import check
from galahad.bank.entry import Need, PersonSource, verified
from galahad.bank.rebuild import BankRebuildReport, Rebuilder
from galahad.problems.problem import Problem
from taliesin.engine import llama
from taliesin.engine.llama import Settings
from taliesin.errors import StoreFull, StoreLocked
from taliesin.host import console
from taliesin.store.library import Library

pytestmark = pytest.mark.native

SETTINGS = Settings(n_ubatch=32, n_threads=1)
PROBLEM = Problem.of("sum-7", "What is the sum of the integers from 1 to 37?", 703)
PROGRAM = "def solve(last=37):\n    return sum(range(last + 1))\n\nprint(solve())\n"
OTHER = Problem.of("count-9", "How many positive divisors does 5040 have?", 60)
COUNT = (
    "def solve(n=5040):\n    return sum(n % d == 0 for d in range(1, n + 1))\n\nprint(solve())\n"
)

Verify = Callable[[str, int], sandbox.Verdict]


@pytest.fixture
def model(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Bank]:
    with Bank(tmp_path / "bank", create=True) as store:
        yield store


@pytest.fixture
def holds(ran: Any) -> Verify:
    """Every program prints what is expected."""
    return lambda _program, expected: sandbox.judge(ran(f"{expected}\n"), expected)


def reader_of(path: str) -> Embedded:
    return Embedded(model=path, settings=SETTINGS)


def fill(store: Bank, model: Path, verify: Verify, *problems: tuple[Problem, str]) -> None:
    reader = reader_of(str(model))
    try:
        for problem, program in problems or ((PROBLEM, PROGRAM), (OTHER, COUNT)):
            store.add(
                verified(problem, program, PersonSource(file="p.py"), verify),
                reader,
                Need(solved="failed", by="a test"),
            )
    finally:
        reader.close()


def from_old_engine(store: Bank, model: Path, verify: Verify) -> None:
    real = llama.build_info
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama, "build_info", lambda: {**real(), "llama_cpp_python": "0.0.1"})
        fill(store, model, verify, (PROBLEM, PROGRAM))


def rebuilt(
    store: Bank, model: Path | None, verify: Verify | None, **more: Any
) -> BankRebuildReport:
    return Rebuilder(
        store, reader_of, None if model is None else str(model), verify=verify, **more
    ).run()


def statuses(report: BankRebuildReport) -> tuple[list[str], list[str]]:
    return [one.status for one in report.entries], [one.status for one in report.blocks.outcomes]


def require_whole(store: Bank, model: Path, verify: Verify) -> None:
    """`bank check --certify` finds nothing."""
    reader = reader_of(str(model))
    try:
        assert check(store, verify, reader) == []
    finally:
        reader.close()


def dated(store: Bank, id_: str, at: str) -> None:
    entry = store.get(id_)
    assert store.update(entry, verification=structs.replace(entry.verification, at=at))


def test_what_holds_is_verified_again_and_dated_anew(
    store: Bank, model: Path, holds: Verify
) -> None:
    fill(store, model, holds)
    dated(store, "sum-7", "2020-01-01T00:00:00Z")
    blocks = [line.id for line in store.library.list()]
    report = rebuilt(store, model, holds)
    assert statuses(report) == (["verified"] * 2, ["verified"] * 2)
    assert report.sound
    assert report.complete
    assert store.get("sum-7").verification.at > "2026"
    assert [line.id for line in store.library.list()] == blocks


def test_the_program_verified_longest_ago_comes_first_and_the_next_run_goes_on(
    store: Bank, model: Path, holds: Verify
) -> None:
    fill(store, model, holds)
    dated(store, "sum-7", "2020-01-01T00:00:00Z")

    class Enough(Exception):
        pass

    def once(_outcome: Any) -> None:
        raise Enough

    with pytest.raises(Enough):
        Rebuilder(store, reader_of, str(model), verify=holds).run(on_entry=once)
    dated(store, "count-9", "2021-01-01T00:00:00Z")
    report = Rebuilder(store, reader_of, str(model), verify=holds).run()
    assert [one.id for one in report.entries] == ["count-9", "sum-7"]
    late = Rebuilder(store, reader_of, str(model), verify=holds).run(max_seconds=0)
    assert (late.entries, late.n_waiting, late.blocks.n_waiting, late.complete) == ([], 2, 2, False)


def test_entry_whose_program_gives_another_answer_is_set_aside_and_can_come_back(
    store: Bank, model: Path, holds: Verify, prints: Any
) -> None:
    fill(store, model, holds)
    written = (store.path / "entries" / "sum-7.json").read_bytes()
    report = rebuilt(store, model, prints("60\n"))
    assert not report.sound
    found = {one.id: one for one in report.entries}
    assert {id_: one.status for id_, one in found.items()} == {
        "count-9": "verified",
        "sum-7": "set-aside",
    }
    assert "printed 60, expected 703 (now quarantine/sum-7@1.json)" in found["sum-7"].reason
    assert (store.ids(), store.set_aside_ids()) == (("count-9",), ("sum-7",))
    assert [one.names for one in report.blocks.outcomes] == [
        (store.get("count-9").block(_sha256(store)),)
    ]
    assert "printed 60, expected 703" in (store.path / "quarantine" / "sum-7@1.txt").read_text(
        encoding="utf-8"
    )
    require_whole(store, model, holds)
    kept = store.path / "quarantine" / "sum-7@1.json"
    assert kept.read_bytes() == written
    kept.rename(store.path / "entries" / "sum-7.json")
    assert statuses(rebuilt(store, model, holds)) == (["verified"] * 2, ["verified"] * 2)


def _sha256(store: Bank) -> str:
    [sha256] = store.get(store.ids()[0]).blocks
    return sha256


@pytest.mark.parametrize(
    ("stdout", "status", "became"),
    [
        ("703\n", "error", "set-aside"),
        ("", "ok", "set-aside"),
        ("703\n", "output-limit", "set-aside"),
        ("703\n", "timeout", "left"),
        ("703\n", "killed", "left"),
    ],
)
def test_only_what_a_busy_machine_can_cause_leaves_an_entry_in_place(
    store: Bank, model: Path, holds: Verify, prints: Any, stdout: str, status: str, became: str
) -> None:
    fill(store, model, holds, (PROBLEM, PROGRAM))
    before = store.get("sum-7")
    report = rebuilt(store, model, prints(stdout, status))
    assert [one.status for one in report.entries] == [became]
    assert (report.sound, report.complete) == (became == "left", became != "left")
    if became == "left":
        assert store.get("sum-7").verification == before.verification


def test_program_is_not_run_in_a_weaker_sandbox_than_before(
    store: Bank, model: Path, holds: Verify, ran: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = replace(ran("703\n"), level="full")
    fill(store, model, lambda _program, expected: sandbox.judge(full, expected), (PROBLEM, PROGRAM))
    asked: list[str] = []

    def verify(program: str, expected: int) -> sandbox.Verdict:
        asked.append(program)
        return holds(program, expected)

    monkeypatch.setattr(sandbox, "probe", lambda: SimpleNamespace(level="kernel"))
    report = rebuilt(store, model, verify)
    assert statuses(report) == (["left"], ["verified"])
    assert "verified in a full sandbox, this host has a kernel one" in report.entries[0].reason
    assert (asked, report.sound, report.complete) == ([], True, False)
    assert statuses(rebuilt(store, model, verify, allow_weak=True))[0] == ["verified"]
    assert (len(asked), store.get("sum-7").verification.level) == (1, "kernel")
    monkeypatch.setattr(sandbox, "probe", lambda: SimpleNamespace(level="weak"))
    assert statuses(rebuilt(store, model, verify))[0] == ["left"]


def test_after_an_engine_upgrade_blocks_are_rebuilt_and_entries_name_the_new_ones(
    store: Bank, model: Path, holds: Verify
) -> None:
    from_old_engine(store, model, holds)
    [old] = store.get("sum-7").blocks.values()
    report = rebuilt(store, model, holds)
    assert statuses(report) == (["verified"], ["rebuilt"])
    assert "llama_cpp_python: stored '0.0.1'" in report.blocks.outcomes[0].reason
    [new] = store.get("sum-7").blocks.values()
    assert (new.name, new.id) == (old.name, store.library.info(old.name).id)
    assert new.id != old.id
    require_whole(store, model, holds)
    assert statuses(rebuilt(store, model, holds)) == (["verified"], ["verified"])


@pytest.mark.parametrize("harm", ["missing", "foreign", "damaged"])
def test_block_that_is_not_what_the_entry_says_is_computed_from_the_entry(
    store: Bank, model: Path, holds: Verify, harm: str
) -> None:
    fill(store, model, holds, (PROBLEM, PROGRAM))
    [block] = store.get("sum-7").blocks.values()
    if harm == "missing":
        store.library.remove(block.name)
    elif harm == "foreign":
        reader = reader_of(str(model))
        reader.save(store.library, block.name, "something else", "x")
        reader.close()
    else:
        path = store.library.block_path(block.id)
        path.chmod(0o600)
        path.write_bytes(b"nothing")
    report = rebuilt(store, model, holds)
    assert statuses(report) == (["verified"], ["rebuilt"])
    assert report.sound
    require_whole(store, model, holds)


def test_block_of_a_model_that_is_not_here_is_left_and_never_moved_to_another(
    store: Bank, model: Path, holds: Verify, tiny_model: Callable[..., Path]
) -> None:
    fill(store, model, holds)
    store.library.remove(next(iter(store.get("sum-7").blocks.values())).name)
    report = rebuilt(store, tiny_model(seed=2), holds)
    assert statuses(report) == (["verified"] * 2, ["left"] * 2)
    assert all("is not here" in one.reason for one in report.blocks.outcomes)
    assert (report.sound, report.complete) == (True, False)


def test_damaged_entry_is_set_aside_so_that_the_bank_can_be_read(
    store: Bank, model: Path, holds: Verify
) -> None:
    fill(store, model, holds)
    path = store.path / "entries" / "sum-7.json"
    path.write_text(
        path.read_text(encoding="utf-8").replace('"answer": 703', '"answer": 704'), encoding="utf-8"
    )
    report = rebuilt(store, model, holds)
    # What cannot be read was verified who knows when: first.
    assert [(one.id, one.status) for one in report.entries] == [
        ("sum-7", "set-aside"),
        ("count-9", "verified"),
    ]
    assert [entry.id for entry in store.entries()] == ["count-9"]
    fill(store, model, holds, (PROBLEM, PROGRAM))
    require_whole(store, model, holds)
    assert store.remove("sum-7") == 1
    assert (store.ids(), store.set_aside_ids()) == (("count-9",), ())


def test_entry_that_was_changed_meanwhile_is_left_alone(
    store: Bank, model: Path, holds: Verify, prints: Any
) -> None:
    fill(store, model, holds, (PROBLEM, PROGRAM))

    def meanwhile(program: str, expected: int) -> sandbox.Verdict:
        dated(store, "sum-7", "2020-01-01T00:00:00Z")
        verdict: sandbox.Verdict = prints("1\n")(program, expected)
        return verdict

    report = rebuilt(store, model, meanwhile)
    assert report.entries == []
    assert (store.ids(), store.set_aside_ids()) == (("sum-7",), ())


def test_place_that_cannot_be_written_is_one_error(
    store: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with pytest.raises(StoreFull, match="not permitted"):
        rebuilt(store, None, None)


def test_two_rebuilds_do_not_meet(store: Bank, model: Path, holds: Verify) -> None:
    fill(store, model, holds, (PROBLEM, PROGRAM))

    def second(_outcome: Any) -> None:
        with Bank(store.path) as again, pytest.raises(StoreLocked, match="another rebuild"):
            rebuilt(again, model, holds)

    assert Rebuilder(store, reader_of, str(model), verify=holds).run(on_entry=second).sound


_KILLED = """
import os, signal, sys
from pathlib import Path
from galahad import cli, sandbox
from galahad.bank import bank, rebuild
from taliesin.store import library

target, left = sys.argv.pop(1), int(sys.argv.pop(1))
owner, name = {
    "aside": (bank.Path, "rename"),
    "entry": (bank.Bank, "update"),
    "block": (library.Library, "supersede"),
}[target]
real = getattr(owner, name)

def counted(self, *args, **kwargs):
    global left
    if str(getattr(self, "path", self)).startswith(sys.argv[3]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return real(self, *args, **kwargs)

setattr(owner, name, counted)
cli.main()
"""


@pytest.mark.skipif(sandbox.probe().level == "weak", reason="this host cannot isolate a program")
@pytest.mark.parametrize(
    ("target", "at", "ended"),
    [
        ("aside", 1, "before the entry moved"),
        ("entry", 1, "before the verdict was stored"),
        ("block", 1, "before the new generation"),
        ("entry", 2, "before the entry named the new generation"),
    ],
)
def test_kill_in_the_middle_loses_nothing_and_the_next_run_goes_on(
    store: Bank, model: Path, holds: Verify, target: str, at: int, ended: str
) -> None:
    from_old_engine(store, model, holds)
    fill(store, model, holds, (OTHER, "print(61)\n"))
    command = ["rebuild", "--bank", str(store.path), "--model", str(model)]
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, target, str(at), *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, f"{ended}: {done.stderr}"
    again = rebuilt(store, model, None)
    assert again.blocks.sound
    assert again.complete
    assert (store.ids(), store.set_aside_ids()) == (("sum-7",), ("count-9",))
    require_whole(store, model, sandbox.verify)


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def call(
    store: Bank, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setattr(console, "_quiet", False)

    def called(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["galahad", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, captured.out, captured.err

    return called


def test_command_says_one_line_unless_something_is_wrong(
    call: Callable[..., tuple[int, str, str]],
    store: Bank,
    model: Path,
    holds: Verify,
    prints: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    fill(store, model, holds)
    options = ("rebuild", "--bank", str(store.path), "--model", str(model), "--allow-weak")
    monkeypatch.setattr(sandbox, "verify", lambda program, expected, **_: holds(program, expected))
    code, out, err = call(*options)
    assert (code, out.count("\n"), err) == (0, 1, "")
    assert out.startswith("2 entries: 2 verified; 2 blocks: 2 verified; ")
    code, out, err = call(*options, "--max-seconds", "0")
    assert (code, "2 entries: 2 not reached; 2 blocks: 2 not reached; " in out) == (4, True)
    monkeypatch.setattr(
        sandbox, "verify", lambda program, expected, **_: prints("60\n")(program, expected)
    )
    code, out, err = call(*options, "--json")
    fields = json.loads(out)
    assert (code, fields["schema"], fields["sound"], fields["set_aside"]) == (
        3,
        "galahad.rebuild/1",
        False,
        ["sum-7"],
    )
    assert "sum-7: set-aside: refuted" in err
    code, out, err = call(*options)
    assert (code, err) == (0, "")
    assert out.startswith("1 entry: 1 verified (1 set aside earlier); ")
    assert "sum-7" in call("bank", "list", "--bank", str(store.path))[2]
    assert call("rebuild", "--bank", str(tmp_path / "none"))[0] == 41


def test_bank_library_that_is_gone_is_made_again(store: Bank, model: Path, holds: Verify) -> None:
    fill(store, model, holds, (PROBLEM, PROGRAM))
    store.close()
    shutil.rmtree(store.path / "library")
    with Bank(store.path) as again:
        assert isinstance(again.library, Library)
        assert statuses(rebuilt(again, model, holds)) == (["verified"], ["rebuilt"])
