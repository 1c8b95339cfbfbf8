"""Our own problems: well formed, checked three ways, and able to vary."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from galahad import sandbox
from galahad.errors import SuiteError
from galahad.problems import faults, templates
from galahad.problems import load as problems
from galahad.responses import program as programs
from taliesin.models.resolve import data_dir

ROOT = data_dir() / "problems"
ALL = templates.read_all(ROOT)
LIMITS = sandbox.Limits(wall_seconds=30, cpu_seconds=5)

needs_sandbox = pytest.mark.skipif(
    sandbox.probe().level == "weak", reason="this host cannot isolate a program"
)


def run(source: str) -> sandbox.Execution:
    return sandbox.run(source, limits=LIMITS)


def test_there_are_at_least_ten_of_each_domain_and_of_mixed_difficulty() -> None:
    assert len(ALL) >= 40
    assert min(Counter(t.domain for t in ALL).values()) >= 10
    levels = Counter(t.difficulty for t in ALL)
    assert levels[1] >= len(ALL) // 3
    assert levels[3] >= 3


def test_the_record_of_the_last_check_covers_every_template_as_it_is() -> None:
    path = ROOT / "checked.json"
    checked = templates.read_checked(path)
    assert checked.text() == path.read_text(encoding="utf-8")
    assert templates.stale(checked, ALL) == []
    assert all(len(record.variants) >= 3 for record in checked.problems.values())
    assert {id: record.answer for id, record in checked.problems.items()} == {
        t.id: t.answer for t in ALL
    }


def test_a_record_of_another_kind_is_refused_by_its_field(tmp_path: Path) -> None:
    path = tmp_path / "checked.json"
    fields = json.loads((ROOT / "checked.json").read_text(encoding="utf-8"))
    fields["problems"]["nt-two-weights"]["agreed"] = 1
    path.write_text(json.dumps(fields), encoding="utf-8")
    with pytest.raises(SuiteError, match="field problems") as refused:
        templates.read_checked(path)
    assert (refused.value.expected, refused.value.got) == ("bool", '"int"')


@pytest.mark.parametrize("template", ALL, ids=lambda t: t.id)
def test_a_template_is_a_sound_problem_with_parametric_reference(
    template: templates.Template,
) -> None:
    problem = template.problem()
    assert faults.find(problem.problem, problem.answer) == []
    assert "[[" not in problem.problem
    assert programs.check(template.sources["solve"], problem.problem).parametric
    # Different ways, not copies of one another.
    bodies = {"".join(source.split('"""', 2)[2].split()) for source in template.sources.values()}
    assert len(bodies) == 3


def test_the_folder_is_a_suite_that_solve_can_read() -> None:
    suite = problems.load(ROOT)
    assert len(suite.problems) == len(ALL)
    assert len({p.sha256 for p in suite.problems}) == len(ALL)
    assert suite.sha256 == problems.load(ROOT).sha256


@needs_sandbox
@pytest.mark.parametrize("index", [0, 17, 30, 47])
def test_a_sample_agrees_three_ways_with_a_variant(index: int) -> None:
    template = ALL[index]
    checked = templates.cross_check(template, None, run)
    assert checked.answer == template.answer, checked
    assert len(templates.variants(template, seed=3, count=1, run=run).found) == 1


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("template", ALL, ids=lambda t: t.id)
def test_every_problem_comes_out_as_recorded(template: templates.Template) -> None:
    kept = templates.read_checked(ROOT / "checked.json")
    record = templates.check(template, run, seed=kept.seed, count=kept.variants)
    assert record == kept.problems[template.id]


# --- what the library does with programs, without a sandbox ---


class Ran(NamedTuple):
    status: str
    stdout: str


TEMPLATE = next(t for t in ALL if t.id == "nt-two-weights")


@pytest.mark.parametrize(
    ("outcomes", "answer", "reason"),
    [
        ([Ran("ok", "503\n")] * 3, 503, ""),
        (
            [Ran("ok", "503\n"), Ran("ok", "503\n"), Ran("ok", "504\n")],
            None,
            "the ways disagree: solve 503, second 503, third 504",
        ),
        (
            [Ran("ok", "503\n"), Ran("timeout", "503\n"), Ran("ok", "503\n")],
            None,
            "second: timeout",
        ),
        (
            [Ran("ok", "503\n"), Ran("ok", "503.0\n"), Ran("ok", "503\n")],
            None,
            "second: no integer printed",
        ),
        ([Ran("ok", "1503\n")] * 3, None, "the answer 1503 is not in 0..999"),
    ],
)
def test_only_agreement_of_all_ways_is_an_answer(
    outcomes: list[Ran], answer: int | None, reason: str
) -> None:
    results = iter(outcomes)
    checked = templates.cross_check(TEMPLATE, None, lambda _source: next(results))
    assert (checked.answer, checked.reason, checked.agreed) == (answer, reason, answer is not None)


def test_variants_keep_ranges_and_constraints_and_are_the_same_for_a_seed() -> None:
    def agree(source: str) -> Ran:
        return Ran(
            "ok",
            str(sum(int(v) for v in programs.parameters(source).values() if isinstance(v, int))),
        )

    first = templates.variants(TEMPLATE, seed=5, count=4, run=agree)
    assert first == templates.variants(TEMPLATE, seed=5, count=4, run=agree)
    assert first != templates.variants(TEMPLATE, seed=6, count=4, run=agree)
    assert len(first.found) == 4
    for variant in first.found:
        assert TEMPLATE.refusal(variant.values) is None
        assert variant.values != TEMPLATE.values
        text = TEMPLATE.text(variant.values)
        assert f"${variant.values['a']}$" in text
        assert f"${variant.values['b']}$" in text


def test_draws_that_do_not_agree_are_kept_with_their_reason() -> None:
    drawn = templates.variants(TEMPLATE, seed=1, count=2, run=lambda _source: Ran("error", ""))
    assert drawn.found == ()
    assert {r.reason for r in drawn.rejected} == {"solve: error"}


def test_values_outside_ranges_or_against_constraints_are_refused() -> None:
    assert TEMPLATE.refusal({"a": 4, "b": 29}) == "a is not in 5..25"
    assert TEMPLATE.refusal({"a": 12, "b": 30}) == "a, b are not coprime"
    assert templates.draw(TEMPLATE, random.Random(1)) is not None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("answer: 503", "answer: 1503", "field answer .*expected: .* 0..999.*got: 1503"),
        ("answer: 503", "", "has no field answer"),
        ("answer: 503", "answer: true", "field answer .*got: true"),
        ("answer: 503", "answer: 503\nanswers: 3", "does not have.*got: answers"),
        ("from: 5", "from: a", "field parameters.*from.*expected: int"),
        ("domain: number theory", "domain: poetry", 'expected: algebra or .*got: "poetry"'),
        ("$[[a]]$", "$13$", "does not show exactly the parameters"),
        ("value: 13", "value: 14", "parameters of solve are not those"),
        ("from: 5", "from: 15", "own values are refused"),
        ("coprime", "friendly", "a key of field constraints.*'friendly'"),
        ("statement: |-", "statement: [", "the problem template is not valid YAML"),
        ("answer: 503", "answer: 2026-99-99", "the problem template is not valid YAML"),
        ("answer: 503", "answer: " + "[" * 20_000, "the problem template is nested too deeply"),
    ],
)
def test_a_template_that_is_not_well_formed_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    source = next(ROOT.rglob("nt-two-weights"))
    folder = tmp_path / source.name
    folder.mkdir()
    for path in source.iterdir():
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            (folder / path.name).write_text(
                text.replace(old, new, 1) if path.suffix == ".yaml" else text
            )
    with pytest.raises(SuiteError, match=f"(?s){message}"):
        templates.read_all(tmp_path)


def test_a_template_without_one_of_its_programs_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "nt-two-weights"
    shutil.copytree(next(ROOT.rglob("nt-two-weights")), folder)
    assert templates.read(folder).id == "nt-two-weights"
    (folder / "third.py").unlink()
    with pytest.raises(SuiteError, match="the problem template cannot be read"):
        templates.read(folder)


def test_an_empty_folder_is_no_suite(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="no problem templates"):
        problems.load(tmp_path)
