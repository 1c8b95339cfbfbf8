"""save, graft, verify and shift as commands: stdout, stderr and exit code apart, in a process of
their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.native

TEXT = "The lamp is lit at dusk. The bell is wound at noon. " * 12


@pytest.fixture
def taliesin(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    model = str(tiny_model())

    def run(
        *arguments: str, stdin: str = "", with_model: bool = True
    ) -> subprocess.CompletedProcess[str]:
        options = [
            "--library",
            str(tmp_path / "lib rary"),
            *(["--model", model] if with_model else []),
        ]
        return subprocess.run(
            [sys.executable, "-m", "taliesin", *arguments, *options],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_save_then_graft_in_another_process(
    taliesin: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    saved = taliesin("save", "-", "--name", "lamp", stdin=TEXT)
    assert saved.returncode == 0, saved.stderr
    assert len(saved.stdout.strip()) == 64
    assert "equals block-then-query" in saved.stderr
    grafted = taliesin("graft", "lamp", "--prompt", "When?", "-n", "6", "--certify")
    assert grafted.returncode == 0, grafted.stderr
    assert "restored" in grafted.stderr
    assert "exact: same recipe, certificate re-checked" in grafted.stderr
    assert "restored" not in grafted.stdout


def test_json_is_one_object_and_says_exact(
    taliesin: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    saved = json.loads(taliesin("save", "-", "--name", "lamp", "--json", stdin=TEXT).stdout)
    assert saved["schema"] == "taliesin.save/1"
    grafted = json.loads(
        taliesin("graft", saved["blocks"][0]["id"][:10], "-p", "When?", "-n", "3", "--json").stdout
    )
    assert (grafted["schema"], grafted["engine"]) == ("taliesin.graft/2", "embedded")
    assert grafted["exact"] is True
    assert grafted["n_generated"] <= 3


def test_a_taken_name_is_refused_and_replace_takes_it(
    taliesin: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    assert taliesin("save", "-", "--name", "lamp", stdin=TEXT).returncode == 0
    again = taliesin("save", "-", "--name", "lamp", stdin="Another text.")
    assert again.returncode == 2
    assert "lamp" in again.stderr
    assert (
        taliesin("save", "-", "--name", "lamp", "--replace", stdin="Another text.").returncode == 0
    )


def test_a_long_text_is_split_over_several_blocks(
    taliesin: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    saved = taliesin("save", "-", "--name", "long", "--block-tokens", "300", "--json", stdin=TEXT)
    blocks = json.loads(saved.stdout)["blocks"]
    assert [b["name"] for b in blocks] == [f"long#{i + 1}" for i in range(len(blocks))]
    assert len(blocks) > 1
    assert all(b["n_tokens"] <= 300 for b in blocks)


def test_aligned_blocks_are_cut_at_the_ubatch(
    taliesin: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    saved = taliesin(
        "save", "-", "--name", "cut", "--aligned", "--ubatch", "128", "--json", stdin=TEXT
    )
    (block,) = json.loads(saved.stdout)["blocks"]
    assert block["n_tokens"] % 128 == 0
    assert block["n_tail"] > 0
    assert block["equals"] == "one-shot"


BAD = {
    "contradiction": (["save", "-", "--name", "x", "--aligned", "--whole"], 2, "contradict"),
    "empty text": (["save", "-", "--name", "x"], 2, "nothing to save"),
    "no such file": (["save", "no/such/file", "--name", "x"], 2, "cannot be read"),
    "no such block": (["graft", "nobody", "--prompt", "x"], 10, "nobody"),
    "too short to align": (["save", "-", "--name", "x", "--aligned"], 2, "too short"),
    "block size": (["save", "-", "--name", "x", "--block-tokens", "3"], 2, "block size"),
    "nothing named": (["verify"], 2, "name one of"),
    "nothing named to shift": (["shift"], 2, "name one of: a block, --text"),
    "two things named": (["verify", "x", "--all"], 2, "name one of"),
    "unknown sabotage": (["verify", "x", "--sabotage", "hammer"], 2, "unknown sabotage"),
    "not numbers": (["shift", "x", "--by", "far"], 2, "whole numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_clear_error(
    case: str, taliesin: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    arguments, code, words = BAD[case]
    if code != 10 or arguments[0] == "graft":
        taliesin("save", "-", "--name", "present", stdin=TEXT)
    done = taliesin(
        *arguments, stdin="A short text." if case in ("too short to align", "block size") else ""
    )
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_an_error_is_one_json_line_with_json(
    taliesin: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    taliesin("save", "-", "--name", "present", stdin=TEXT)
    done = taliesin("graft", "nobody", "--prompt", "x", "--json")
    error = json.loads(done.stderr.strip().splitlines()[-1])["error"]
    assert (error["kind"], error["exit_code"], done.returncode) == ("store-missing", 10, 10)


def test_other_threads_are_refused_by_name_and_pass_with_a_label(
    taliesin: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    taliesin("save", "-", "--name", "lamp", "--threads", "2", stdin=TEXT)
    refused = taliesin("graft", "lamp", "-p", "When?", "--threads", "1")
    assert refused.returncode == 22
    assert "n_threads: stored 2, here 1" in refused.stderr
    passed = taliesin("graft", "lamp", "-p", "When?", "-n", "2", "--threads", "1", "--inexact")
    assert passed.returncode == 0
    assert "warning: inexact: n_threads" in passed.stderr


def test_a_model_outside_the_catalogue_must_be_named(
    taliesin: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    taliesin("save", "-", "--name", "lamp", stdin=TEXT)
    done = taliesin("graft", "lamp", "-p", "When?", with_model=False)
    assert done.returncode == 31
    assert "--model" in done.stderr


def test_verify_prints_the_verdict_and_exits_with_it(
    taliesin: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    taliesin("save", "-", "--name", "lamp", stdin=TEXT)
    exact = taliesin("verify", "lamp", "--trials", "1", "--steps", "2", "--queries", "1,7")
    assert exact.returncode == 0, exact.stderr
    assert "EXACT: equals block, then query" in exact.stdout
    broken = taliesin(
        "verify",
        "lamp",
        "--trials",
        "1",
        "--steps",
        "2",
        "--queries",
        "7",
        "--sabotage",
        "shift",
        "--json",
    )
    assert broken.returncode == 3
    assert json.loads(broken.stdout)["exact"] is False


def test_verify_takes_a_text(
    taliesin: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    done = taliesin(
        "verify", "--text", str(path), "--trials", "1", "--steps", "1", "--queries", "7", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["exact"] is True


def test_reports_read_what_verify_and_shift_print(
    taliesin: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    from galahad.evidence import findings

    taliesin("save", "-", "--name", "lamp", stdin=TEXT)
    verified = taliesin(
        "verify", "lamp", "--trials", "1", "--steps", "1", "--queries", "7", "--json"
    )
    shifted = taliesin("shift", "lamp", "--by", "1", "--queries", "1", "--json")
    for done, claim in ((verified, "C1"), (shifted, "C3")):
        assert done.returncode == 0, done.stderr
        assert claim in [
            finding.claim for finding in findings.of(json.loads(done.stdout), "x.json")
        ]
