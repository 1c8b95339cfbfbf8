"""The one integer rule: cases as data, properties over arbitrary text."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from galahad import sandbox
from galahad.responses import integer as answers
from galahad.responses.integer import Extraction, extract, grade, resolve, vote

CASES: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("answers.yaml").read_text(encoding="utf-8")
)


class Ran(NamedTuple):
    status: str
    stdout: str


def run_plainly(source: str) -> Ran:
    """Stands in for the sandbox: the programs here are translated from the cases above, not a
    model's.
    """
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return Ran("error" if done.returncode else "ok", done.stdout)


def refuse_to_run(source: str) -> Ran:
    raise AssertionError("nothing to compute here")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_rule_decides(case: dict[str, Any]) -> None:
    extraction = extract(case["response"])
    assert (extraction.reason == "expression") is case.get("resolved", False)
    if extraction.reason == "expression":
        assert grade(extraction, case["gold"]) == "not-extracted"  # nothing is computed here
    extraction = resolve(extraction, run_plainly if case.get("resolved") else refuse_to_run)
    assert grade(extraction, case["gold"]) == {"none": "not-extracted"}.get(
        case["grade"], case["grade"]
    )


def test_reasons_tell_why_there_is_no_value() -> None:
    reasons = {
        "<think>\\boxed{3}": "unfinished",
        "<think>nothing yet": "no-answer",
        "Answer: \\boxed{}": "empty",
        "\\boxed{" + "9" * 5000 + "}": "too-large",
        "The answer is " + "9" * 5000: "too-large",
        "\\boxed{20.4}": "not-an-integer",
        "\\boxed{3x}": "unreadable",
        "": "no-answer",
    }
    assert {text: extract(text).reason for text in reasons} == reasons
    assert all(extract(text).value is None for text in reasons)


def test_a_prompt_that_opened_the_reasoning_is_honoured() -> None:
    assert extract("\\boxed{5}", in_reasoning=True).reason == "unfinished"
    assert extract("\\boxed{5} </think> \\boxed{6}", in_reasoning=True).value == 6


def test_the_span_shows_the_answer_in_the_response() -> None:
    for text, content in (
        ("so \\boxed{３１６}!", "３１６"),
        ("Answer:  **316** \n", "**316**"),
        ("<answer> 7 </answer>", "7"),
    ):
        span = extract(text).span
        assert span is not None
        assert text[slice(*span)] == content


def test_a_program_that_fails_or_prints_nonsense_leaves_the_answer_unresolved() -> None:
    pending = extract("\\boxed{2^{99999999}}")
    for result in (
        Ran("timeout", ""),
        Ran("timeout", "5"),
        Ran("ok", ""),
        Ran("ok", "hello"),
        Ran("ok", "1.5"),
    ):
        resolved = resolve(pending, lambda _source, result=result: result)  # type: ignore[misc]
        assert resolved.value is None
        assert grade(resolved, 5) == "not-extracted"
    assert resolve(pending, lambda _source: Ran("ok", "fraction\n")).reason == "not-an-integer"
    assert resolve(pending, lambda _source: Ran("ok", "12\n")) == Extraction(
        12, pending.expression, "integer", pending.span
    )


@pytest.mark.skipif(sandbox.probe().level == "weak", reason="this host cannot isolate a program")
def test_the_sandbox_computes_and_its_limits_hold() -> None:
    assert resolve(extract("\\boxed{\\frac{408}{2}}")).value == 204
    assert resolve(extract("\\boxed{9^{9^{9^{9}}}}")).reason == "unresolved"
    assert resolve(extract("\\boxed{7^{2025} \\bmod 1000}")).value == pow(7, 2025, 1000)


@given(st.text() | st.text(alphabet="\\boxed{}0123456789answer is:<>/think$*#.,()+-^! \n"))
def test_extract_never_raises_and_its_span_lies_in_the_text(text: str) -> None:
    found = extract(text)
    assert (found.value is not None) == (found.reason == "integer")
    assert (found.expression is not None) == (found.reason == "expression")
    if found.span is not None:
        assert 0 <= found.span[0] <= found.span[1] <= len(text)
    assert extract(text) == found


FORMS = (
    "\\boxed{%s}",
    "\\boxed{ %s }",
    "$\\boxed{x = %s}$",
    "\\boxed{%s \\text{ units}}",
    "The answer is %s.",
    "**Final Answer**\n\n%s",
    "Answer: **%s**",
    "<answer>%s</answer>",
    "#### %s",
    "<think>\\boxed{1}</think>\nFinal answer: %s",
)


@given(st.integers(-(10**17), 10**17), st.sampled_from(FORMS), st.sampled_from(("d", ",d", "05d")))
def test_every_form_gives_back_what_was_written(value: int, form: str, spec: str) -> None:
    text = form % format(value, spec)
    assert extract(text).value == value
    # What was extracted, written in the plainest form, is extracted again.
    assert extract(f"\\boxed{{{extract(text).value}}}").value == value


@given(st.integers(0, 999), st.sampled_from([0xFF10, 0x0660, 0x0966, 0x1D7CE]))
def test_digits_of_every_script_are_digits(value: int, zero: int) -> None:
    assert (
        extract("\\boxed{" + "".join(chr(zero + int(d)) for d in str(value)) + "}").value == value
    )


arithmetic = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: (
        st.builds(
            "({}{}{})".format, inner, st.sampled_from(("+", "-", "*", "\\cdot ", "\\times")), inner
        )
        | st.builds("\\frac{{{}}}{{{}}}".format, inner, inner)
    ),
    max_leaves=8,
)


@given(arithmetic)
def test_a_translation_holds_only_the_grammar(content: str) -> None:
    found = extract(f"\\boxed{{{content}}}")
    if found.expression is None:
        return
    names = {
        node.id for node in ast.walk(ast.parse(found.expression)) if isinstance(node, ast.Name)
    }
    assert names <= {"F", "power", "fact", "binom", "root", "modulo", "floor", "ceil"}


@given(st.text(alphabet="0123456789+-*/^(){}!\\.bcdfinmoqrst,% ", max_size=60))
def test_a_translation_is_python_or_nothing(content: str) -> None:
    found = extract(f"\\boxed{{{content}}}")
    if found.expression is not None:
        ast.parse(answers.program(found.expression))


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 20_000,
        "\\boxed{" * 20_000 + "1" + "}" * 20_000,
        "<answer>" * 20_000,
        "answer\n" + "\n" * 50_000,
        "*" * 100_000 + "answer: 1",
        "final " * 20_000,
        "\\boxed{" + "." * 100_000 + "x}",
        "\\boxed{" + "(" * 200 + "1" + ")" * 200 + "}",
        "The answer is " + "3 " * 50_000,
        "<think>" * 20_000,
        "{" * 100_000,
        "$" * 100_000,
        "\\boxed{" + "-" * 250 + "1}",
    ],
    ids=range(13),
)
def test_hostile_text_is_bounded(text: str) -> None:
    extract(text)


@given(st.text())
def test_integer_reads_plain_integers_only(text: str) -> None:
    value = answers.integer(text)
    if value is not None:
        assert answers.integer(str(value)) == value


def test_integer_refuses_fractions_words_and_expressions() -> None:
    assert [answers.integer(text) for text in ("025", " 7\n", "-3", "1,024", "２０４")] == [
        25,
        7,
        -3,
        1024,
        204,
    ]
    assert [
        answers.integer(text) for text in ("25.0", "25.", "", "A", "1/2", "1 2", "1,2", "9" * 5000)
    ] == [None] * 8


def test_grade_tells_wrong_from_not_extracted() -> None:
    assert grade(extract("\\boxed{5}"), 5) == "right"
    assert grade(extract("\\boxed{5}"), 6) == "wrong"
    assert grade(extract("I do not know"), 6) == "not-extracted"


def test_vote_takes_the_most_frequent_and_lets_the_rest_abstain() -> None:
    assert vote([5, None, 5, 7]) == (5, "decided", 2, 3, 4)
    assert vote([5, 7]) == (None, "no-majority", 1, 2, 2)
    assert vote([5, 5, 7, 7, 9]) == (None, "no-majority", 2, 5, 5)
    assert vote([None, None]) == (None, "no-votes", 0, 0, 2)
    assert vote([]) == (None, "no-votes", 0, 0, 0)
    assert vote([0]) == (0, "decided", 1, 1, 1)


@given(st.lists(st.none() | st.integers(0, 3)), st.randoms(use_true_random=False))
def test_vote_does_not_depend_on_the_order(values: list[int | None], rng: Any) -> None:
    shuffled = list(values)
    rng.shuffle(shuffled)
    assert vote(shuffled) == vote(values)
