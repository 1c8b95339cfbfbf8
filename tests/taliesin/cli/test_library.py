"""The verbs of `taliesin` that need no engine: exit code, stdout and stderr of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from taliesin import cli
from taliesin.cli.options import parse_bytes
from taliesin.errors import UsageError
from taliesin.host import console
from taliesin.store.header import BlockHeader, Certificate, Part, Source
from taliesin.store.library import Library

GOLDEN = Path(__file__).parents[2] / "golden"


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        assert self.out.count("\n") == 1
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run one command on the test's own library, in this process, as `main` would."""
    monkeypatch.setenv("TALIESIN_LIBRARY", str(tmp_path / "library"))
    monkeypatch.setattr(console, "_quiet", False)

    def call(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["taliesin", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return Result(exit_.value.code, captured.out, captured.err)

    return call


@pytest.fixture
def store(tmp_path: Path) -> Library:
    """A library with the blocks `big` and `small`."""
    store = Library(tmp_path / "library")
    for name, n_bytes in (("big", 50_000), ("small", 500)):
        header = BlockHeader(
            title=f"The {name} one",
            created="2026-01-31T12:00:00Z",
            recipe={"n_ubatch": 512, "model": {"sha256": "ab" * 32}},
            equals="one-shot",
            tokens=np.arange(20, dtype=np.int32),
            tail=np.arange(3, dtype=np.int32),
            text="Text with a \x1b[31mcolour",
            certificate=Certificate((1,), ("0" * 64, "1" * 64), (5,)),
            stop=(2,),
            part=Part(1, 2),
            source=Source("cd" * 32, 99),
        )
        store.put(name, header, bytes(n_bytes))
    return store


def damage(store: Library, name: str) -> None:
    path = store.block_path(store.info(name).id)
    raw = bytearray(path.read_bytes())
    raw[-100] ^= 1  # in the payload: the trailer of a block of one chunk has 64 bytes
    path.chmod(0o600)
    path.write_bytes(raw)
    path.chmod(0o400)


def test_missing_library_is_exit_10(run: Run) -> None:
    for arguments in (
        ["list"],
        ["show", "a"],
        ["check"],
        ["rm", "a", "--yes"],
        ["gc", "--budget", "1GB"],
        ["pin", "a"],
    ):
        result = run(*arguments)
        assert (result.code, result.out) == (10, "")
        assert "no library there" in result.err


def test_failure_is_one_json_line_on_stderr_with_json(run: Run, store: Library) -> None:
    result = run("show", "nothing", "--json")
    assert (result.code, result.out) == (10, "")
    assert json.loads(result.err)["error"]["kind"] == "store-missing"


def test_list_prints_a_table_and_its_sum_on_stderr(run: Run, store: Library) -> None:
    result = run("list")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == ["name", "big", "small"]
    assert "2 blocks" in result.err
    assert run("list", "--names").out == "big\nsmall\n"
    assert run("--quiet", "list").err == ""


def test_list_as_json_has_every_field(run: Run, store: Library) -> None:
    result = run("list", "--json")
    assert result.err == ""
    assert result.json["schema"] == "taliesin.list/1"
    big, small = result.json["blocks"]
    assert big == {
        **store.info("big")._asdict(),
        "pinned": False,
        "last_used": None,
        "problem": None,
    }
    assert small["name"] == "small"
    store.mark_used(big["id"])
    assert str(run("list", "--json").json["blocks"][0]["last_used"]).endswith("Z")


def test_empty_library_lists_nothing(run: Run, tmp_path: Path) -> None:
    Library(tmp_path / "library")
    result = run("list")
    assert (result.code, result.out) == (0, "")
    assert "no blocks" in result.err


def test_list_says_what_is_wrong(run: Run, store: Library) -> None:
    store.block_path(store.info("big").id).unlink()
    (store.path / "refs" / "small.json").unlink()
    rows = run("list").out.splitlines()
    assert "the block is missing" in rows[1]
    assert rows[2].startswith(f"({store.list()[1].id[:12]})")


def test_library_option_wins_over_the_environment(run: Run, store: Library, tmp_path: Path) -> None:
    Library(tmp_path / "other")
    assert run("list", "--names", "--library", str(tmp_path / "other")).out == ""


def test_show_prints_promise_recipe_and_certificate(run: Run, store: Library) -> None:
    result = run("show", "big")
    assert result.code == 0
    assert (
        "one-shot: a graft equals the ordinary run of block and query as one prompt" in result.out
    )
    assert "2 logits vectors" in result.out
    assert "n_ubatch" in result.out
    assert "2 of 2" in result.out
    assert "\x1b" not in result.out


def test_show_as_json(run: Run, store: Library) -> None:
    fields = run("show", store.info("big").id[:10], "--json").json
    assert fields["schema"] == "taliesin.show/1"
    assert fields["recipe"] == {"model": {"sha256": "ab" * 32}, "n_ubatch": 512}
    assert fields["certificate"] == {"probe": [1], "sha256": ["0" * 64, "1" * 64], "greedy": [5]}
    assert (fields["n_tokens"], fields["n_tail"], fields["payload_bytes"]) == (20, 3, 50_000)
    assert (fields["part"], fields["source"]["bytes"]) == ({"index": 1, "count": 2}, 99)


def test_show_text_is_the_text(run: Run, store: Library) -> None:
    assert run("show", "big", "--text").out == "Text with a \x1b[31mcolour\n"


def test_show_damaged_block_is_exit_12(run: Run, store: Library) -> None:
    path = store.block_path(store.info("big").id)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])
    result = run("show", "big")
    assert (result.code, result.out) == (12, "")
    assert "cut short" in result.err


def test_check_answers_no_with_exit_3_and_repairs_on_request(run: Run, store: Library) -> None:
    assert (run("check").code, run("check").out) == (0, "")
    damage(store, "big")
    assert run("check", "--quick").code == 0
    result = run("check")
    assert result.code == 3
    assert result.out.startswith("damaged-block  blocks/")
    assert "1 finding of damage" in result.err
    assert run("list", "--names").out == "big\nsmall\n"
    fields = run("check", "--repair", "--json")
    assert fields.code == 3
    assert [f["kind"] for f in fields.json["findings"]] == ["damaged-block", "dangling-ref"]
    assert all(f["action"] and f["damage"] for f in fields.json["findings"])
    assert run("check").code == 0
    assert run("list", "--names").out == "small\n"


def test_check_that_runs_out_of_time_is_exit_4(run: Run, store: Library) -> None:
    result = run("check", "--max-seconds", "0")
    assert result.code == 4
    assert "stopped before the end" in result.err
    assert run("check", "--max-seconds", "-1").code == 2


def test_remark_is_no_damage(run: Run, store: Library) -> None:
    (store.path / "notes.txt").write_text("x")
    result = run("check")
    assert result.code == 0
    assert result.out == "foreign-file  notes.txt  not a file of this library; left alone\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["rm", "big"],
        ["gc", "--budget", "0"],
        ["import", str(GOLDEN / "bundle_v1.tar"), "--replace"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_nothing_is_destroyed_unasked(run: Run, store: Library, arguments: list[str]) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "--yes" in result.err
    assert run("list", "--names").out == "big\nsmall\n"


def test_rm_removes_all_or_none(run: Run, store: Library) -> None:
    assert run("rm", "big", "nothing", "--yes").code == 10
    assert run("list", "--names").out == "big\nsmall\n"
    result = run("rm", "big", "small", "big", "--yes", "--json")
    assert [block["name"] for block in result.json["blocks"]] == ["big", "small"]
    assert run("list", "--names").out == ""


def test_answer_on_a_terminal_decides(
    run: Run, store: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question, err: False)
    assert run("rm", "big").code == 3
    monkeypatch.setattr("typer.confirm", lambda question, err: True)
    assert run("rm", "big").code == 0
    assert run("list", "--names").out == "small\n"


def test_gc_keeps_to_the_budget(run: Run, store: Library) -> None:
    dry = run("gc", "--budget", "20kB", "--dry-run")
    assert (dry.code, dry.out.splitlines()[1].split()[0]) == (0, "big")
    assert "would be freed" in dry.err
    assert run("list", "--names").out == "big\nsmall\n"
    result = run("gc", "--budget", "20kB", "--yes", "--json")
    assert [block["name"] for block in result.json["removed"]] == ["big"]
    assert result.json["kept_bytes"] <= 20_000
    assert run("list", "--names").out == "small\n"


def test_gc_says_when_pinned_blocks_are_over_the_budget(run: Run, store: Library) -> None:
    assert run("pin", "big").code == 0
    assert "pinned" in run("list").out
    result = run("gc", "--budget", "1kB", "--yes")
    assert result.code == 4
    assert "over the budget" in result.err
    assert run("list", "--names").out == "big\n"
    assert run("unpin", "big").code == 0
    assert run("gc", "--budget", "1kB", "--yes").code == 0
    assert run("list", "--names").out == ""


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("0", 0),
        ("12", 12),
        ("12B", 12),
        ("1kB", 1000),
        ("1.5 MB", 1_500_000),
        ("2GiB", 2 << 30),
        ("1tb", 10**12),
    ],
)
def test_sizes_are_read_as_written(text: str, n_bytes: int) -> None:
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "-1", "1XB", "GB", "1e3", "1 2", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a size"):
        parse_bytes(text)


def test_export_and_import_carry_blocks(run: Run, store: Library, tmp_path: Path) -> None:
    bundle = tmp_path / "out.tar"
    assert run("export", "big", "small", "--out", str(bundle)).code == 0
    assert run("export", "big", "--out", str(bundle)).code == 2
    nowhere = run("export", "big", "--out", str(tmp_path / "no" / "out.tar"))
    assert (nowhere.code, "the folder is missing" in nowhere.err) == (2, True)
    other = str(tmp_path / "other")
    result = run("import", str(bundle), "--library", other)
    assert (result.code, result.out) == (0, "")
    assert "big: not checked here: a block of engine None" in result.err
    assert (
        "first graft"
        in run("import", str(bundle), "--library", str(tmp_path / "third"), "--no-certify").err
    )
    assert run("import", str(bundle), "--rebuild", "--no-certify").code == 2
    assert run("list", "--names", "--library", other).out == "big\nsmall\n"
    again = run("import", str(bundle), "--library", other, "--json").json
    assert (again["added"], again["present"]) == ([], ["big", "small"])


def test_export_all(run: Run, store: Library, tmp_path: Path) -> None:
    for wrong in (
        ["export", "-o", str(tmp_path / "x")],
        ["export", "big", "--all", "-o", str(tmp_path / "x")],
    ):
        assert run(*wrong).code == 2
    result = run("export", "--all", "-o", str(tmp_path / "x"), "--json")
    assert result.json["names"] == ["big", "small"]
    assert result.json["bytes"] == (tmp_path / "x").stat().st_size


def test_import_of_something_else_is_exit_20(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello" * 1000)
    assert run("import", str(tmp_path / "x")).code == 20
    assert run("import", str(GOLDEN / "block_v1.kvb")).code == 20
    assert run("import", str(tmp_path / "none")).code == 10
    whole = (GOLDEN / "bundle_v1.tar").read_bytes()
    for end in (0, 512, 1024, 2048, len(whole) // 2):
        (tmp_path / "cut.tar").write_bytes(whole[:end])
        assert (
            run("import", str(tmp_path / "cut.tar"), "--library", str(tmp_path / "never")).code
            == 20
        )
    assert not (tmp_path / "never").exists()
    assert run("import", str(GOLDEN / "bundle_v1.tar")).code == 0


def test_rename(run: Run, store: Library) -> None:
    assert run("rename", "big", "small").code == 2
    result = run("rename", "big", "the big one", "--json")
    assert result.json["blocks"][0]["name"] == "the big one"
    assert run("rename", "big", "x").code == 10
    assert run("list", "--names").out == "small\nthe big one\n"


def test_pin_pins_all_or_none(run: Run, store: Library) -> None:
    assert run("pin", "big", "nothing").code == 10
    assert not store.info("big").pinned
    assert [block["pinned"] for block in run("pin", "big", "small", "--json").json["blocks"]] == [
        True,
        True,
    ]


def test_every_verb_leads_its_help_with_an_example_and_ends_it_with_exit_codes(run: Run) -> None:
    for verb in ("list", "show", "check", "rm", "gc", "export", "import", "rename", "pin", "unpin"):
        result = run(verb, "--help")
        assert result.code == 0
        text, _options = result.out.split("Options:")
        assert f"taliesin {verb}" in text
        assert "Exit codes: 0 done" in text or "Exit codes: 0 no damage" in text
        assert "--json" in result.out
        assert "--library" in result.out


def test_listing_in_a_pipe_loads_no_numpy_and_ends_with_its_reader(store: Library) -> None:
    environment = {**os.environ, "TALIESIN_LIBRARY": str(store.path), "COLUMNS": "20"}
    listed = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "taliesin", "list", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(json.loads(listed.stdout)["blocks"]) == 2
    imported = {line.rsplit("|", 1)[-1].strip() for line in listed.stderr.splitlines()}
    assert not imported & {"llama_cpp", "scipy", "sympy", "matplotlib"}
    again = subprocess.run(
        f"'{sys.executable}' -X importtime -m taliesin list | head -n 1",
        shell=True,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout.startswith("name")
    assert "Traceback" not in again.stderr
    assert "numpy" not in {line.rsplit("|", 1)[-1].strip() for line in again.stderr.splitlines()}
