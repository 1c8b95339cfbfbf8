"""Programs found in responses, given other parameters, and checked for numbers baked into their
logic.
"""

from __future__ import annotations

import ast
import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galahad.responses import program as programs
from taliesin.errors import UsageError

FENCED = (
    "Counting:\n```python\nprint(1)\n```\nBetter:\n"
    "```python\nfor x in range(3):\n    print(x)\n```\nIt prints.\n"
)


def test_the_last_complete_block_that_parses_is_the_program() -> None:
    found = programs.extract(FENCED)
    assert found.source == "for x in range(3):\n    print(x)\n"
    assert found.span is not None
    assert FENCED[slice(*found.span)] == found.source
    assert (
        programs.extract("```python\nprint(1)\n```\n```python\nprint((\n```").source == "print(1)\n"
    )
    assert programs.extract("```py\nprint(1)\n```\n```text\n12\n```").source == "print(1)\n"
    assert programs.extract("1. so\n   ```python\n   print(1)\n   ```\n").source == "print(1)\n"


def test_an_unfinished_program_is_none() -> None:
    assert programs.extract("```python\nprint(1)") == programs.Found(None, "unfinished", (10, 18))
    assert programs.extract("<think>```python\nprint(1)\n```").reason == "unfinished"
    assert programs.extract("```python\nprint(1)\n```", in_reasoning=True).reason == "unfinished"
    assert programs.extract("```python\nprint(1)\n", stopped_at_fence=True).source == "print(1)\n"


def test_text_without_code_and_code_that_is_no_python_are_told_apart() -> None:
    assert programs.extract("The answer is 5.").reason == "no-code"
    assert programs.extract("").reason == "no-code"
    assert programs.extract("```python\nprint((\n```").reason == "syntax-error"
    assert (
        programs.extract("def solve():\n    return 5\nprint(solve())").source
        == "def solve():\n    return 5\nprint(solve())\n"
    )


def test_too_large_or_hostile_source_is_no_program() -> None:
    assert programs.parse("x = 1\n" * 20_000) is None
    assert programs.parse("(" * 5_000) is None
    assert programs.parse("x\0y") is None
    programs.parse("-" * 50_000 + "1")


@given(st.text() | st.text(alphabet="`~python\n print(1)<think/>"))
def test_extract_never_raises_and_gives_python(text: str) -> None:
    found = programs.extract(text)
    assert (found.source is not None) == (found.reason == "program")
    if found.source is not None:
        ast.parse(found.source)


def test_a_program_that_would_print_nothing_is_completed() -> None:
    assert (
        programs.complete("def solve(n=3):\n    return n\n")
        == "def solve(n=3):\n    return n\n\nprint(solve())\n"
    )
    assert programs.complete("def solve(n=3):\n    return n\nsolve(4)\n").endswith(
        "print(solve(4))\n"
    )
    assert programs.complete("x = 2\nx\n") == "x = 2\nprint(x)\n"
    for unchanged in ("print(1)\n", "def solve(n):\n    return n\n", "if True:\n    print(2)\n"):
        assert programs.complete(unchanged) == unchanged


def output(source: str) -> list[str]:
    """The lines that a program of this file prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source, "program", "exec"), {"__name__": "__main__"})
    return out.getvalue().splitlines()


GUARD = 'if __name__ == "__main__":\n    '


@pytest.mark.parametrize(
    "source",
    [
        "def main():\n    print(204)\nmain()\n",
        "def solve(n=204):\n    print(n)\nsolve()\n",
        f"def solve(n=204):\n    print(n)\n{GUARD}solve()\n",
        f"def solve(n=204):\n    return n\ndef main():\n    print(solve())\n{GUARD}main()\n",
        "def show(n):\n    print(n)\ndef main():\n    return show(204)\nmain()\n",
        "def main():\n    print(204)\n    return 0\nmain()\n",
        "class A:\n    def run(self):\n        print(204)\nA().run()\n",
        "import sys\ndef main():\n    sys.stdout.write('204\\n')\nmain()\n",
        "def main():\n    print(204)\ntry:\n    main()\nexcept ValueError:\n    pass\n",
        "def main():\n    if True:\n        print(204)\n        return\n    return None\nmain()\n",
    ],
    ids=range(10),
)
def test_a_program_whose_own_function_prints_runs_once(source: str) -> None:
    assert programs.complete(source) == source
    assert output(source) == ["204"]


def test_a_function_that_prints_its_steps_and_returns_the_answer_is_printed() -> None:
    steps = "def solve():\n    print('step')\n    n = 204\n    return n\n"
    for ending in ("solve()\n", f"{GUARD}solve()\n", "n = solve()\n", ""):
        assert output(programs.complete(steps + ending)) == ["step", "204"]
    assert output(programs.complete("def solve(n=204):\n    print(n)\n")) == ["204"]
    both = "def f(n=204):\n    print(n)\n    return n\nf()\n"
    assert output(programs.complete(both))[-1] == "204"


@pytest.mark.parametrize(
    "source",
    [
        's = "a\u2028b"\nn = 204\nn\n',
        "# a\x0cb\nn = 204\nn",
        "n = 204; n",
        "n = 204\n(\n    n\n)\n",
        "n = 204\nn  # the answer\n",
        "ä = 204\r\nä\r\n",
    ],
    ids=range(6),
)
def test_lines_are_those_that_the_parser_counts(source: str) -> None:
    assert output(programs.complete(source)) == ["204"]


def test_a_block_of_python_has_many_names() -> None:
    for name in ("", "Python", "python3.11", "py3", "ipython", "ipython3", "tool_code", "sage"):
        assert programs.extract(f"```{name}\nprint(1)\n```").source == "print(1)\n"
    for name in ("text", "pytb", "pycon", "output", "c"):
        assert programs.extract(f"```{name}\nprint(1)\n```").source is None


SOURCE = '''"""Sums up to 90."""
LIMIT = 50


def solve(n=17, *, weights=(3, -4), name="ä", free=LIMIT):
    """17 and 3."""
    total = 185 + n % 7
    for k in range(1, n + 1):
        total += k * 17
    return total + int("23")


print(solve(n=19))
'''


def test_parameters_are_the_literal_defaults_of_solve() -> None:
    assert programs.parameters(SOURCE) == {"n": 17, "weights": (3, -4), "name": "ä"}
    assert programs.parameters("print(1)") == {}


def test_substitute_changes_defaults_and_calls_and_nothing_else() -> None:
    changed = programs.substitute(SOURCE, {"n": 21, "weights": (5, 6), "name": "ö"})
    assert "def solve(n=21, *, weights=(5, 6), name='ö', free=LIMIT):" in changed
    assert "print(solve(n=21))" in changed
    assert (
        changed.replace("21", "17", 1)
        .replace("(5, 6)", "(3, -4)")
        .replace("'ö'", '"ä"')
        .replace("21", "19")
        == SOURCE
    )
    with pytest.raises(UsageError, match="no parameter m"):
        programs.substitute(SOURCE, {"m": 1})
    with pytest.raises(UsageError, match="not a Python program"):
        programs.substitute("def", {})


@given(st.integers(), st.lists(st.integers()))
def test_substitute_round_trips(n: int, weights: list[int]) -> None:
    changed = programs.substitute(SOURCE, {"n": n, "weights": weights})
    assert programs.parameters(changed) == {"n": n, "weights": weights, "name": "ä"}


def test_constants_know_their_place() -> None:
    places = [(c.value, c.place) for c in programs.constants(SOURCE)]
    assert places == [
        (50, "named"),
        (17, "parameter"),
        (3, "parameter"),
        (-4, "parameter"),
        (185, "logic"),
        (7, "logic"),
        (1, "logic"),
        (1, "logic"),
        (17, "logic"),
        (23, "logic"),
        (19, "call"),
    ]


def test_numbers_of_a_problem_leave_indices_and_figures_out() -> None:
    text = (
        "Let $x_1 = 12$ and $a_{34} = 1{,}500$, seven times; "
        "\\begin{asy}(0,99)\\end{asy} or 2.5 and 4,000."
    )
    assert programs.numbers_of(text) == {12, 1500, 7, 2.5, 4000}


def test_a_number_of_the_problem_inside_the_logic_is_baked_in() -> None:
    result = programs.check(
        SOURCE,
        "Find the sum for $n = 17$, weights 3 and 4, step 7, at most 50. There are 61 of them.",
    )
    assert [c.value for c in result.baked] == [7, 17]
    assert [c.value for c in result.derived] == [185, 23]
    assert [c.value for c in result.loose] == [50]
    assert result.unused == (61,)
    assert not result.parametric
    assert len(result.explain()) == 5


def test_a_program_with_all_numbers_as_parameters_is_parametric() -> None:
    source = (
        "def solve(n=17, m=1000):\n    return sum(k * k for k in range(1, n + 1)) % m\n"
        "print(solve())\n"
    )
    result = programs.check(source, "Find the remainder of the sum of 17 squares divided by 1000.")
    assert result.parametric
    assert result.explain() == []
    assert not programs.check("print(sum(range(18)))", "Sum the first 17 numbers.").parametric


def test_tolerances_and_halves_are_part_of_a_method() -> None:
    source = "def solve(n=17):\n    return round(n * 0.5 + 1e-9) + 180 + 10**6\n"
    assert programs.check(source, "17").parametric
    assert not programs.check("def solve(n=17):\n    return n * 13.6\n", "17").parametric
