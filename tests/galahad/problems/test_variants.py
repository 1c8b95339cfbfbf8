"""Solutions that are kept without their text, and variants whose answers agree three ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from galahad import sandbox
from galahad.errors import SuiteError
from galahad.problems import solutions, templates
from galahad.problems import variants as isomorph
from galahad.problems.problem import Problem, text_sha256
from galahad.problems.solutions import Solution
from galahad.responses import program as programs

needs_sandbox = pytest.mark.skipif(
    sandbox.probe().level == "weak", reason="this host cannot isolate a program"
)
LIMITS = sandbox.Limits(wall_seconds=60, cpu_seconds=20)
KEPT = solutions.read_all()
TEXT = "A farmer has 12 hens and 30 sheep, 42 animals. How many legs do they have?"
YAML = """\
id: legs
source: a test
sha256: {sha256}
answer: 144
domain: algebra
numbers:
  hens: {{value: 12, at: 13, from: 1, to: 9}}
  sheep: {{value: 30, at: 25}}
  animals: {{value: 42, at: 35, stated_only: true}}
  legs: {{value: 4}}
candidates:
  - {{hens: 5, sheep: 6, animals: 11}}
  - {{hens: 7, sheep: 500, animals: 507}}
  - {{hens: 10, sheep: 11, animals: 21}}
"""
PROGRAM = (
    "def solve(hens=12, sheep=30, legs=4):\n    return 2 * hens + legs * "
    "sheep\n\n\nprint(solve())\n"
)


@pytest.fixture
def legs(tmp_path: Path) -> Solution:
    folder = tmp_path / "legs"
    folder.mkdir()
    (folder / "program.yaml").write_text(YAML.format(sha256=text_sha256(TEXT)), encoding="utf-8")
    for way in templates.WAYS:
        (folder / f"{way}.py").write_text(PROGRAM, encoding="utf-8")
    return solutions.read(folder)


def agree(ran: Any) -> Any:
    """What PROGRAM prints, without running it."""

    def run(source: str) -> sandbox.Execution:
        p = programs.parameters(source)
        return ran(f"{2 * int(p['hens']) + int(p['legs']) * int(p['sheep'])}\n")  # type: ignore[arg-type]

    return run


def test_the_eight_solutions_hold_no_text_and_their_parameters_are_in_every_program() -> None:
    assert len(KEPT) == 8
    for solution in KEPT.values():
        assert solution.statement == ""
        for source in solution.sources.values():
            named = {n: v for n, v in solution.values.items() if n not in solution.stated_only}
            assert programs.parameters(source) == named


@needs_sandbox
@pytest.mark.parametrize(
    "solution",
    [s for s in KEPT.values() if s.id in ("aime-2025-20", "aime-2025-28")],
    ids=lambda s: s.id,
)
def test_a_sample_of_the_kept_programs_prints_the_answer_three_ways(solution: Solution) -> None:
    check_three_ways(solution)


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("solution", KEPT.values(), ids=lambda s: s.id)
def test_every_kept_program_prints_the_answer_three_ways(solution: Solution) -> None:
    check_three_ways(solution)


def check_three_ways(solution: Solution) -> None:
    checked = templates.cross_check(
        solution, None, lambda source: sandbox.run(source, limits=LIMITS)
    )
    assert checked.answer == solution.answer, checked


def test_a_bound_text_takes_other_numbers_at_their_places(legs: Solution) -> None:
    bound = legs.bind(TEXT)
    assert bound.text() == TEXT
    told = bound.text({"hens": 5, "sheep": 600, "animals": 605})
    assert told == "A farmer has 5 hens and 600 sheep, 605 animals. How many legs do they have?"


def test_numbers_that_are_only_stated_are_no_parameter_of_a_program(legs: Solution) -> None:
    source = legs.program("solve", {"hens": 5, "animals": 35})
    assert programs.parameters(source) == {"hens": 5, "sheep": 30, "legs": 4}


def test_another_text_is_refused(legs: Solution) -> None:
    with pytest.raises(SuiteError, match="another text"):
        legs.bind(TEXT + " ")


def test_candidates_are_drawn_by_seed_and_those_without_an_answer_in_range_rejected(
    legs: Solution, ran: Any
) -> None:
    bound = legs.bind(TEXT)
    drawn = isomorph.draw(bound, 1, 3, agree(ran))
    assert sorted(one.answer or 0 for one in drawn.found) == [34, 64]
    assert [one.reason for one in drawn.rejected] == ["the answer 2014 is not in 0..999"]
    assert drawn == isomorph.draw(bound, 1, 3, agree(ran))
    assert len(isomorph.draw(bound, 1, 1, agree(ran)).found) == 1


def test_variants_come_back_from_their_file_with_seed_and_proof(
    legs: Solution, ran: Any, tmp_path: Path
) -> None:
    bound = legs.bind(TEXT)
    problem = Problem.of("farm", TEXT, 144)
    made = isomorph.name(bound, problem, 1, isomorph.draw(bound, 1, 2, agree(ran)))
    path = tmp_path / "variants.jsonl"
    path.write_text(isomorph.dumps(made), encoding="utf-8")
    assert list(isomorph.load(path)) == made
    assert made[0].problem.id == "farm~1"
    assert set(made[0].by_way) == {"solve", "second", "third"}
    assert made[0].origin_sha256 == problem.sha256


def test_that_a_problem_has_no_variant_is_recorded(legs: Solution, ran: Any) -> None:
    problem = Problem.of("farm", TEXT, 144)
    told = isomorph.record(
        legs, problem, 0, isomorph.draw(legs, 0, 1, lambda _source: ran("", "error"))
    )
    assert told["found"] == []
    assert len(told["rejected"]) == 3
    assert told["no_variant"] == "no draw was agreed on"
    sudoku = next(s for s in KEPT.values() if s.id == "aime-2025-10")
    none = isomorph.draw(sudoku, 0, 1, lambda _source: ran("", "error"))
    assert "prime" in isomorph.record(sudoku, problem, 0, none)["no_variant"]


@pytest.mark.parametrize("line", ["", "{}", "[]", "x", '{"id": 1}', "[" * 100_000])
def test_a_file_that_is_no_variants_file_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "v.jsonl"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(SuiteError):
        isomorph.load(path)


ROW = {
    "id": "a~1",
    "problem": "One\u2028two\x85?",
    "answer": 3,
    "sha256": text_sha256("One\u2028two\x85?"),
    "origin": "a",
    "origin_sha256": "0",
    "seed": 1,
    "values": {"n": 1},
    "by_way": {"solve": 3},
    "programs": {"solve": "0"},
}


def test_line_separators_of_a_text_are_no_ends_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    path.write_text(json.dumps(ROW, ensure_ascii=False) + "\n", encoding="utf-8")
    assert isomorph.load(path)[0].problem.problem == ROW["problem"]


@pytest.mark.parametrize(
    "rows",
    [
        [ROW, ROW],
        [{**ROW, "answer": float("inf")}],
        [{**ROW, "answer": 3.7}],
        [{**ROW, "answer": True}],
        [{**ROW, "answer": 1000}],
        [{**ROW, "seed": float("inf")}],
        [{**ROW, "values": []}],
    ],
)
def test_variants_that_are_there_twice_or_of_other_types_are_refused(
    tmp_path: Path, rows: list[object]
) -> None:
    path = tmp_path / "v.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    with pytest.raises(SuiteError):
        isomorph.load(path)


def test_a_variant_whose_text_was_changed_is_refused(
    legs: Solution, ran: Any, tmp_path: Path
) -> None:
    bound = legs.bind(TEXT)
    [one] = isomorph.name(
        bound, Problem.of("farm", TEXT, 144), 1, isomorph.draw(bound, 1, 1, agree(ran))
    )
    row = {**one.as_dict(), "problem": "another"}
    path = tmp_path / "v.jsonl"
    path.write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(SuiteError, match="another hash"):
        isomorph.load(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("id: legs", "id: arms", "another name"),
        ("answer: 144", "answer: 1440", "field answer .*got: 1440"),
        ("hens: 5,", "ducks: 5,", "unknown numbers"),
        ("value: 30", "value: 31", "are not the numbers"),
        ("numbers:", "number:", "has no field numbers|got: number"),
        ("sha256: ", "sha256: x", "field sha256"),
    ],
)
def test_a_malformed_solution_is_refused(
    legs: Solution, tmp_path: Path, old: str, new: str, said: str
) -> None:
    path = tmp_path / "legs" / "program.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(SuiteError, match=f"(?s){said}"):
        solutions.read(tmp_path / "legs")


def test_a_number_that_is_not_at_its_place_is_refused(legs: Solution, tmp_path: Path) -> None:
    path = tmp_path / "legs" / "program.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("at: 13", "at: 14"), encoding="utf-8")
    with pytest.raises(SuiteError, match="hens is not at its place"):
        solutions.read(tmp_path / "legs").bind(TEXT)
