"""LiveBench: the split leaks nothing, and grading asks for what the prompts ask for. The questions here are our own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from galahad import cli, livebench
from galahad.errors import SuiteError
from galahad.livebench import Answer
from taliesin import console
from taliesin.errors import UsageError


def row(id_: str, task: str = "zebra_puzzle", released: str = "2024-06-24", **more: Any) -> dict[str, Any]:
    fields = {"question_id": id_, "task": task, "ground_truth": "red", "turns": [f"Which colour is house {id_}?"]}
    return fields | {"livebench_release_date": released, "category": "x"} | more


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return path


def test_split_is_by_date_and_leaks_neither_id_nor_text_nor_template(tmp_path: Path) -> None:
    file = write(
        tmp_path / "q.jsonl",
        row("old"),
        row("new", released="2024-11-25"),
        row("again", released="2024-11-25", turns=["Which colour is house old?"]),
        row("exam", "math_comp", subtask="amc_12a_2023"),
        row("exam2", "math_comp", "2024-11-25", subtask="updated_amc_12a_2023"),
        row("exam3", "math_comp", "2024-11-25", subtask="aime_i_2025"),
    )
    parts = livebench.split(livebench.read([file]), "2024-11-25")
    assert [[q.id for q in part] for part in parts] == [["old", "exam"], ["new", "exam3"], ["again", "exam2"]]


@pytest.mark.parametrize("date", ["yesterday", "2024-1-1", "2024-11-25T00:00:00"])
def test_date_is_a_date(date: str) -> None:
    with pytest.raises(UsageError, match="not a date"):
        livebench.split([], date)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"task": "poetry"}, "no grader"),
        ({"turns": []}, "one turn"),
        ({"turns": [1]}, "one turn"),
        ({"livebench_release_date": "soon"}, "release date"),
    ],
)
def test_row_that_cannot_be_used_is_named(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    with pytest.raises(SuiteError, match=what) as caught:
        livebench.read([write(tmp_path / "q.jsonl", row("a"), row("b") | change)])
    assert "line 2" in str(caught.value.where)


def test_file_that_is_none_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    (tmp_path / "y").write_text("[1]\n")
    (tmp_path / "z").write_text("\n")
    for name in ("none", "x", "y", "z"):
        with pytest.raises(SuiteError):
            livebench.read([tmp_path / name])
    with pytest.raises(SuiteError, match="twice"):
        livebench.read([write(tmp_path / "q.jsonl", row("a"), row("a"))])


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        ("so the answer is 025", "025", True),
        ("so the answer is 25", "025", False),
        ("it is 025, or rather 026", "025", False),
        ("1025", "025", False),
        ("therefore AAAAA", "A", True),
        ("AAAAA no, BBBBB", "A", False),
        ("A", "A", False),
        ("", "A", False),
    ],
)
def test_contest_answers_are_graded_as_their_prompt_says(response: str, gold: str, right: bool) -> None:
    assert livebench.grade_math_comp(response, gold) == float(right)


@pytest.mark.parametrize(
    ("response", "gold", "share"),
    [
        ("<solution>1, Red, police-officer</solution>", "1, red, police-officer", 1.0),
        ("<solution>1, blue</solution>", "1, red", 0.5),
        ("<solution>2</solution> <solution>1, red</solution>", "1, red", 1.0),
        ("the answer is ***Rabbit***", "rabbit", 1.0),
        ("rabbit", "rabbit", 0.0),
    ],
)
def test_zebra_puzzles_are_graded_place_by_place(response: str, gold: str, share: float) -> None:
    assert livebench.grade_zebra_puzzle(response, gold) == share


@pytest.mark.parametrize(
    ("response", "right"),
    [("**yes, no, yes**", 1.0), ("**yes, no**", 0.0), ("**Yes, No, Yes.**", 1.0), ("yes, no, yes", 0.0)],
)
def test_web_of_lies_counts_as_a_whole(response: str, right: float) -> None:
    assert livebench.grade_web_of_lies(response, "yes, no, yes") == right


def test_scores_keep_the_arms_apart() -> None:
    answers = [Answer(str(i), "zebra_puzzle", i < 3, 1.0 if i < 3 else 0.5, False, 0.0, 10, 20) for i in range(4)]
    found = livebench.scores(answers)["zebra_puzzle"]
    assert (found["right"], found["n"], found["without"]["right"]) == (3, 4, 0)
    assert found["mean_share"] == pytest.approx(0.875)
    assert found["paired"]["p"] == pytest.approx(0.25)
    assert livebench.scores([]) == {}


def test_sample_depends_on_its_seed_alone(tmp_path: Path) -> None:
    questions = livebench.read([write(tmp_path / "q.jsonl", *(row(str(i)) for i in range(30)))])
    once = livebench.sample(questions, 5, 1)
    assert livebench.sample(questions[::-1], 5, 1) == once
    assert livebench.sample(questions, 5, 2) != once


def test_command_says_how_the_files_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_quiet", False)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["galahad", "livebench", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, captured.out, captured.err

    file = write(tmp_path / "q.jsonl", row("old"), row("new", released="2024-11-25"))
    code, out, _ = call(str(file), "--library-before", "2024-11-25", "--split-only", "--json")
    assert (code, json.loads(out)["n_library"], json.loads(out)["n_test"]) == (0, 1, 1)
    code, _, err = call(str(file), "--library-before", "2025-01-01", "--split-only")
    assert code == 4
    assert "no newer question is left" in err
    assert call(str(file), "--library-before", "soon")[0] == 2
    assert call(str(tmp_path / "none"), "--library-before", "2025-01-01")[0] == 40
