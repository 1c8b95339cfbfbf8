"""LiveBench: the split leaks nothing, and grading asks for what the prompts ask for. The questions
here are our own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galahad import cli
from galahad.errors import SuiteError
from galahad.livebench import rules as livebench_rules
from galahad.livebench import run as livebench
from galahad.livebench.records import Result
from taliesin.errors import UsageError
from taliesin.host import console, records
from taliesin.store.library import Library
from tests.galahad.doubles import livebench_answer as answer
from tests.galahad.doubles import livebench_said as said
from tests.galahad.doubles import livebench_settings as settings


def row(
    id_: str, task: str = "zebra_puzzle", released: str = "2024-06-24", **more: Any
) -> dict[str, Any]:
    fields = {
        "question_id": id_,
        "task": task,
        "ground_truth": "red",
        "turns": [f"Which colour is house {id_}?"],
    }
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
    assert [[q.id for q in part] for part in parts] == [
        ["old", "exam"],
        ["new", "exam3"],
        ["again", "exam2"],
    ]


@pytest.mark.parametrize("date", ["yesterday", "2024-1-1", "2024-11-25T00:00:00"])
def test_date_is_a_date(date: str) -> None:
    with pytest.raises(UsageError, match="not a date"):
        livebench.split([], date)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"task": "poetry"}, 'field task .*expected: math_comp or .*got: "poetry"'),
        ({"turns": []}, "field turns .*expected: one turn"),
        ({"turns": [1]}, r"field turns\[0\] .*got: 1"),
        ({"livebench_release_date": "soon"}, "expected: a release date YYYY-MM-DD"),
    ],
)
def test_row_that_cannot_be_used_is_named(
    tmp_path: Path, change: dict[str, Any], what: str
) -> None:
    with pytest.raises(SuiteError, match=f"(?s){what}") as caught:
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
        ("x" * 56 + "1025", "025", False),
        ("so 1025" + " " * 56, "025", False),
        ("that is 0.025", "025", False),
        ("that is 1,025", "025", False),
        ("that is 025.5", "025", False),
        ("that is 025.", "025", True),
        ("the answer is \\boxed{025}.", "025", True),
        ("**025**", "025", True),
        ("025, and here is why: " + "because " * 20, "025", False),
        ("\uff10\uff12\uff15", "025", False),
        ("therefore AAAAA", "A", True),
        ("AAAAA no, BBBBB", "A", False),
        ("A", "A", False),
        ("AAAAAA", "A", False),
        ("\\boxed{AAAAA}", "A", True),
        ("for example FFFFF. So: AAAAA", "A", True),
        ("aaaaa", "A", False),
        ("A A A A A", "A", False),
        ("", "A", False),
    ],
)
def test_contest_answers_are_graded_as_their_prompt_says(
    response: str, gold: str, right: bool
) -> None:
    assert livebench_rules.asked_math_comp(response, gold) == right


def test_response_that_was_cut_off_has_no_last_part_but_what_it_marked_counts() -> None:
    assert not livebench_rules.asked_math_comp("the answer is 025", "025", True)
    assert livebench_rules.asked_math_comp("so AAAAA because", "A", True)
    assert livebench_rules.asked_zebra_puzzle("<solution>1, red</solution> because", "1, red", True)
    assert not livebench_rules.asked_zebra_puzzle("<solution>1, red", "1, red", True)


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        ("<solution>1, Red, police-officer</solution>", "1, red, police-officer", True),
        ("<solution>1, blue</solution>", "1, red", False),
        ("<solution>2</solution> <solution>1, red</solution>", "1, red", True),
        ("<solution>\n1,  red,\nthe  hat\n</solution>", "1, red, the hat", True),
        ("<solution> <solution>1, red</solution>", "1, red", True),
        ("<solution>1, red, blue, green</solution>", "1, red", False),
        ("<solution>red, 1</solution>", "1, red", False),
        ("<solution></solution>", "1, red", False),
        ("***1, red***", "1, red", False),
        ("<solution>rabbit</solution>", "rabbit", False),
        ("***cat*** no, ***rabbit***", "rabbit", True),
        ("the answer is ***Rabbit***", "rabbit", True),
        ("rabbit", "rabbit", False),
    ],
)
def test_zebra_puzzles_are_right_in_the_form_that_the_prompt_asks_for(
    response: str, gold: str, right: bool
) -> None:
    assert livebench_rules.asked_zebra_puzzle(response, gold) == right


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("**yes, no, yes**", True),
        ("**yes, no**", False),
        ("**Yes, No, Yes.**", True),
        ("yes, no, yes", False),
        ("**Step 1**: she lies. **yes, no, yes** because **Emily** lies", True),
        ("**yes, no, yes**, no: **no, no, yes**", False),
        ("***yes, no, yes***", True),
        ("**yes**, **no**, **yes**", False),
        ("**yes, no, maybe**", False),
        ("**yes, no, yes", False),
        ("****", False),
    ],
)
def test_web_of_lies_counts_as_a_whole(response: str, right: bool) -> None:
    assert livebench_rules.asked_web_of_lies(response, "yes, no, yes") == right


RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
OPTIONS = "Which? $\\textbf{(A)}~\\sqrt{5}-1\\qquad\\textbf{(B)}~12 \\qquad \\textbf{(C) } 13$"
OLD, NEW = "2024-06-24", "2024-11-25"


@pytest.mark.parametrize(
    ("task", "released", "gold", "response", "score"),
    [
        ("math_comp", OLD, "025", "so it is 025" + "." * 47, 1.0),
        ("math_comp", OLD, "025", "so it is 025" + "." * 48, 0.0),
        # the published rule looks for the digits only
        ("math_comp", OLD, "025", "that is 1025", 1.0),
        ("math_comp", OLD, "B", "BBBB, or so", 1.0),
        ("math_comp", OLD, "B", "BBB", 0.0),
        ("math_comp", OLD, "B", "<solution>bb</solution>", 1.0),
        ("math_comp", OLD, "B", "thus \\boxed{\\text{B}}", 1.0),
        ("math_comp", OLD, "B", "thus \\boxed{A} \\boxed{B} holds", 1.0),
        ("math_comp", OLD, "B", "the answer is 12", 1.0),
        ("math_comp", OLD, "B", "12 " + "x" * 23, 0.0),
        ("math_comp", OLD, "A", "\\sqrt{5}-1", 1.0),
        ("math_comp", OLD, "E", "no such option", 0.0),
        ("zebra_puzzle", OLD, "rabbit", "***cat*** ***Rabbit***", 1.0),
        ("zebra_puzzle", OLD, "rabbit", "it is the rabbit.", 1.0),
        ("zebra_puzzle", OLD, "rabbit", "***cat***, or a rabbit", 0.0),
        ("zebra_puzzle", OLD, "three", "***3***", 1.0),
        ("zebra_puzzle", OLD, "spy movies", "***spy***", 1.0),
        ("zebra_puzzle", OLD, "rabbit", "", 0.0),
        (
            "zebra_puzzle",
            NEW,
            "1, red, police-officer, tea",
            "<solution>1, Red, Police Officer, tea</solution>",
            1.0,
        ),
        ("zebra_puzzle", NEW, "1, red, hat, tea", "<solution>1, red, hat, milk</solution>", 0.375),
        ("zebra_puzzle", NEW, "1, red", "<solution>2</solution> <solution>1, red</solution>", 1.0),
        ("zebra_puzzle", NEW, "1, red", "<solution>position 1, dark red</solution>", 1.0),
        ("zebra_puzzle", NEW, "1, red", "thus \\boxed{\\text{1, red}}", 1.0),
        ("zebra_puzzle", NEW, "1, red", "so:\n1, red", 1.0),
        ("zebra_puzzle", NEW, "1, red", "so:\n1 and red", 0.0),
        ("zebra_puzzle", NEW, "1, red", "</solution>1, red</solution>", 1.0),
        ("web_of_lies_v2", OLD, "yes, no, yes", "**yes**, **no**, **yes**", 1.0),
        ("web_of_lies_v2", OLD, "yes, no, yes", "**no** **Yes, no. yes**", 1.0),
        (
            "web_of_lies_v2",
            OLD,
            "yes, no, yes",
            "<solution>yes, no, yes</solution> **no, no, no**",
            1.0,
        ),
        ("web_of_lies_v2", OLD, "yes, no, yes", "\\boxed{yes, no, yes}", 1.0),
        ("web_of_lies_v2", OLD, "yes, no, yes", "\\textbf{yes, no, yes}", 1.0),
        ("web_of_lies_v2", OLD, "yes, no, yes", "No, no, yes; then Yes, no, yes.", 1.0),
        ("web_of_lies_v2", OLD, "yes, no, yes", "yes, no, yes and no, no, no", 0.0),
        ("web_of_lies_v2", OLD, "yes, no, yes", "**yes, no**", 0.0),
        ("web_of_lies_v2", OLD, "yes, no, yes", "", 0.0),
    ],
)
def test_score_is_what_the_published_scorer_gives(
    task: str, released: str, gold: str, response: str, score: float
) -> None:
    question = livebench_rules.Question("a", task, "t", released, OPTIONS, gold)
    assert livebench_rules.RULES[task].published(response, question) == pytest.approx(score)


@given(
    st.text("AB025,. *<>/solution\\boxed{}yesno\n"),
    st.sampled_from(["025", "A", "1, red", "rabbit", "yes, no, yes"]),
)
def test_no_response_breaks_a_rule(response: str, gold: str) -> None:
    for task, rule in livebench_rules.RULES.items():
        if (task == "math_comp") == (gold in ("025", "A")):
            assert (
                0
                <= rule.published(
                    response, livebench_rules.Question("a", task, "t", NEW, OPTIONS, gold)
                )
                <= 1
            )
            assert rule.asked(response, gold, False) in (True, False)


@pytest.mark.parametrize(
    ("task", "gold"),
    [
        ("math_comp", "025"),
        ("math_comp", "D"),
        ("zebra_puzzle", "1, red, the hat"),
        ("zebra_puzzle", "rabbit"),
        ("web_of_lies_v2", "yes, no, yes"),
    ],
)
def test_example_shows_its_answer_in_the_form_that_is_graded(task: str, gold: str) -> None:
    question = livebench_rules.Question("a", task, "t", NEW if "," in gold else OLD, OPTIONS, gold)
    answer = livebench.document(task, [question]).rpartition("Answer: ")[2]
    rule = livebench_rules.RULES[task]
    assert rule.asked(answer, gold, False)
    assert rule.published(answer, question) == 1.0


def test_scores_keep_the_arms_apart_and_state_wilson_intervals() -> None:
    answers = [
        answer(str(i), said(i < 3, 0.5), said(False, cut=i == 0, n_out=20)) for i in range(4)
    ]
    found = livebench.scores(answers)["zebra_puzzle"]
    assert (found.right, found.n, found.without.right, found.without.cut) == (
        3,
        4,
        0,
        1,
    )
    assert found.mean_score == pytest.approx(0.875)
    assert (found.n_out, found.without.n_out, found.seconds) == (40, 80, 2.0)
    # Wilson for 3 of 4 and for 0 of 4, z = 1.96: centre and half-width by hand.
    assert (found.low, found.high) == (
        pytest.approx(0.3006, abs=1e-4),
        pytest.approx(0.9544, abs=1e-4),
    )
    assert (found.without.low, found.without.high) == (
        pytest.approx(0.0),
        pytest.approx(0.4899, abs=1e-4),
    )
    assert found.paired.p == pytest.approx(0.25)
    assert livebench.scores([]) == {}


def test_sample_depends_on_its_seed_alone(tmp_path: Path) -> None:
    rows = livebench.read([write(tmp_path / "q.jsonl", *(row(str(i)) for i in range(30)))])
    once = livebench.sample(rows, 5, 1)
    assert livebench.sample(rows[::-1], 5, 1) == once
    assert livebench.sample(rows, 6, 1)[:5] == once, "a larger sample holds the smaller one"
    assert livebench.sample(rows, 5, 2) != once


# -- asking ----------------------------------------------------------------------------------------


def questions(
    tmp_path: Path,
) -> tuple[list[livebench_rules.Question], list[livebench_rules.Question]]:
    """Two examples of one task, and three newer questions with list golds."""
    rows = [row(f"old{i}") for i in range(2)]
    rows += [row(f"new{i}", released="2024-11-25", ground_truth="1, red") for i in range(3)]
    parts = livebench.split(livebench.read([write(tmp_path / "q.jsonl", *rows)]), "2024-11-25")
    return parts.library, parts.test


def test_both_arms_graft_and_every_answer_is_graded_by_its_format(
    tmp_path: Path, scripted: Any
) -> None:
    examples, test = questions(tmp_path)
    long = "I think and think <solution>1, red</solution> and think on"
    reader = scripted(
        {
            "zebra_puzzle-library": ["<solution>1, red</solution>", "1, red", long],
            "zebra_puzzle-without": ["<solution>1, blue</solution>", "", "<solution>1, red"],
        }
    )
    with Library(tmp_path / "library") as library:
        answers = list(livebench.ask(reader, library, examples, test, 52))
        with (
            library.open("zebra_puzzle-library") as block,
            library.open("zebra_puzzle-without") as other,
        ):
            assert all(example.text in block.header.text for example in examples)
            assert "Which colour" not in other.header.text
    assert [(a.id, a.library.right, a.library.score, a.library.cut) for a in answers] == [
        ("new0", True, 1.0, False),
        ("new1", False, 1.0, False),
        ("new2", True, 1.0, True),
    ]
    assert [(a.without.right, a.without.score) for a in answers] == [
        (False, 0.25),
        (False, 0.0),
        (False, 1.0),
    ]
    assert [a.library.n_out for a in answers] == [27, 6, 52]
    asked = [(one.prefix.name, one.question) for one in reader.asked]
    assert asked[:2] == [
        ("zebra_puzzle-library", test[0].text),
        ("zebra_puzzle-without", test[0].text),
    ]


def test_task_without_an_example_is_refused(tmp_path: Path, scripted: Any) -> None:
    with (
        Library(tmp_path / "library") as library,
        pytest.raises(UsageError, match="no library question"),
    ):
        list(livebench.ask(scripted(), library, [], questions(tmp_path)[1], 10))


def test_answers_come_back_from_their_file_and_other_settings_are_refused(tmp_path: Path) -> None:
    answers: livebench.Answers = {
        "transfer": [answer("a", said(True), said(False, cut=True))],
        "replay": [],
    }
    path = tmp_path / "lb.json"
    made = livebench.result(settings(), answers, 2)
    path.write_text(json.dumps(records.plain(made)), encoding="utf-8")
    assert livebench.resume(path, settings()) == answers
    assert livebench.resume(tmp_path / "none", settings()) == {"transfer": [], "replay": []}
    with pytest.raises(UsageError, match="another seed"):
        livebench.resume(path, settings(seed=2))
    for content in ("", "[]", '{"settings": {}}'):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(SuiteError, match="the result of livebench"):
            livebench.resume(path, settings())


def test_a_result_of_before_the_typed_record_is_read_and_written_byte_for_byte() -> None:
    for path in sorted(RESULTS.rglob("livebench_*.json")):
        found = records.read(path, Result, what="the result")
        text = json.dumps(records.plain(found), indent=1) + "\n"
        assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "change",
    [
        {"task": []},
        {"task": None},
        {"question_id": 5},
        {"question_id": ""},
        {"ground_truth": ["a"]},
        {"ground_truth": None},
        {"ground_truth": " "},
        {"turns": [""]},
        {"turns": [3]},
        {"turns": ["\ud800"]},
        {"livebench_release_date": "2024-13-01"},
        {"livebench_release_date": "2024-02-30"},
        {"livebench_release_date": "\u0662024-01-01"},
        {"livebench_release_date": 2024},
    ],
)
def test_field_of_another_kind_is_one_error(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(SuiteError):
        livebench.read([write(tmp_path / "q.jsonl", row("a") | change)])


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "galahad.livebench/1"},
        {"settings": []},
        {"settings": 3},
        {"transfer_answers": None},
        {"right": "x"},
        {"score": float("nan")},
        {"score": None},
        {"n_out": "9"},
        {"seconds": -1},
        {"cut": None},
        {"id": []},
        {"task": "other"},
        {"twice": True},
    ],
)
def test_result_of_another_program_is_not_gone_on_with(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    answers: livebench.Answers = {
        "transfer": [answer("a", said(True), said(False))],
        "replay": [],
    }
    found = records.plain(livebench.result(settings(), answers, 2))
    one = found["transfer_answers"][0]
    for name, value in change.items():
        if name == "twice":
            found["transfer_answers"] *= 2
        else:
            (found if name in found else one if name in one else one["library"])[name] = value
    path = tmp_path / "lb.json"
    path.write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(SuiteError, match="the result of livebench") as refused:
        livebench.resume(path, settings())
    assert refused.value.where == path


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setattr(console, "_quiet", False)

    def called(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["galahad", "livebench", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, captured.out, captured.err

    return called


def test_command_says_how_the_files_split(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    file = write(tmp_path / "q.jsonl", row("old"), row("new", released="2024-11-25"))
    code, out, _ = call(str(file), "--library-before", "2024-11-25", "--split-only", "--json")
    settings = json.loads(out)["settings"]
    assert (code, settings["n_library"], settings["n_test"]) == (0, 1, 1)
    code, _, err = call(str(file), "--library-before", "2025-01-01", "--split-only")
    assert code == 4
    assert "no newer question is left" in err
    assert call(str(file), "--library-before", "soon")[0] == 2
    assert call(str(file), "--library-before", "2024-02-30")[0] == 2
    code, _, err = call(str(file), "--library-before", "2020-01-01")
    assert code == 2
    assert "no question is released before" in err
    code, _, err = call(str(file), "--library-before", "2024-11-25", "--out", "/dev/zero")
    assert code == 13
    assert call(str(file), str(file), "--library-before", "2024-11-25")[0] == 40
    assert call(str(file), "--library-before", "2024-11-25", "--sample", "0")[0] == 2
    assert call(str(tmp_path / "none"), "--library-before", "2025-01-01")[0] == 40


def test_command_scores_transfer_and_replay_apart_and_asks_nothing_twice(
    tmp_path: Path,
    call: Callable[..., tuple[int, str, str]],
    scripted: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [row(f"old{i}", ground_truth="1, red") for i in range(3)]
    rows += [row(f"new{i}", released="2024-11-25", ground_truth="1, red") for i in range(3)]
    file, out = write(tmp_path / "q.jsonl", *rows), tmp_path / "lb.json"
    right = "<solution>1, red</solution>"
    reader = scripted({"zebra_puzzle-library": [right], "zebra_puzzle-without": ["red"]})
    monkeypatch.setattr("galahad.cli.livebench.open_reader", lambda *_: reader)
    command = (str(file), "--library-before", "2024-11-25", "--seed", "3", "--out", str(out))
    code, _, _ = call(*command, "--sample", "2", "--max-seconds", "0")
    assert (code, len(reader.asked), json.loads(out.read_text())["complete"]) == (4, 2, False)
    code, printed, _ = call(*command, "--sample", "2")
    assert (code, len(reader.asked)) == (0, 2 * 4)
    assert "transfer" in printed
    assert "2/2 (34% to 100%)" in printed
    code, printed, _ = call(*command, "--sample", "3", "--json")
    found = json.loads(printed)
    assert (code, len(reader.asked), found["schema"]) == (0, 2 * 6, "galahad.livebench/2")
    for kind, prefix in (("transfer", "new"), ("replay", "old")):
        assert (found[kind]["zebra_puzzle"]["right"], found[kind]["zebra_puzzle"]["n"]) == (3, 3)
        assert found[kind]["zebra_puzzle"]["without"]["right"] == 0
        assert {one["id"] for one in found[f"{kind}_answers"]} == {f"{prefix}{i}" for i in range(3)}
    written = out.read_text(encoding="utf-8")
    assert json.loads(written) == found
    assert "Which colour" not in written
    assert right not in written
    assert call(*command, "--tokens", "7")[0] == 2


@pytest.mark.native
def test_command_runs_with_a_model(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]], tiny_model: Callable[..., Path]
) -> None:
    file = write(tmp_path / "q.jsonl", row("old"), row("new", released="2024-11-25"))
    options = (
        "--library-before",
        "2024-11-25",
        "--tokens",
        "5",
        "--model",
        str(tiny_model()),
        "--threads",
        "1",
    )
    code, out, _ = call(str(file), *options, "--json")
    found = json.loads(out)
    assert code == 0
    assert [
        one["library"]["n_out"] <= 5 for one in found["transfer_answers"] + found["replay_answers"]
    ] == [True] * 2
