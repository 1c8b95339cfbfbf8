"""Solving by two routes: order, budget, confidence, votes.

The answerer is scripted. Programs run in the real sandbox where their end is the subject; elsewhere
their output is scripted too.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from galahad import sandbox
from galahad.measure import energy
from galahad.measure.canonical import canonical
from galahad.problems import load as problems
from galahad.responses import integer as answers
from galahad.solve import log as runlog
from galahad.solve import markdown, prompts, router, run, solver
from galahad.solve import summary as report
from galahad.solve.solver import RouteRecord, Settings
from galahad.solve.writer import RunLog
from taliesin.errors import ContextFull, UsageError
from taliesin.host import records
from tests.galahad.doubles import ScriptedAnswerer

COUNT = "How many integers from 1 to 50 are divisible by 7?"
FIGURE = "In triangle ABC the angle at A is 90 degrees. Find the area."
GOOD = (
    "def solve(n=50):\n    return sum(k % 7 == 0 for k in range(1, n + 1))\n\nprint(solve())\n```"
)
SHA = problems.text_sha256(COUNT)


def script(**says: str | list[str] | type[Exception]) -> ScriptedAnswerer:
    """Answers by pass."""
    return ScriptedAnswerer(says, n_out=40)


def attempt(
    answerer: ScriptedAnswerer, text: str = COUNT, settings: Settings = Settings(), k: int = 0
) -> solver.Attempt:
    return solver.solve(answerer, text, problems.text_sha256(text), k, settings)


PRINTED = {"return sum": "7\n", "print(9)": "9\n", "print(-3)": "-3\n"}


@pytest.fixture
def scripted_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs print what `PRINTED` says, or fail; nothing is started."""

    def execute(source: str, **_options: object) -> sandbox.Execution:
        printed = next((out for part, out in PRINTED.items() if part in source), "")
        code = 0 if printed or not source else 1
        return sandbox.Execution(
            "error" if code else "ok",
            code,
            None,
            printed,
            "",
            False,
            False,
            0.01,
            0.01,
            1,
            "full",
            (),
        )

    monkeypatch.setattr(sandbox, "run", execute)


def test_both_routes_and_the_check_that_agree_make_it_confident() -> None:
    answerer = script(thought="so \\boxed{7}", check="I find \\boxed{7}", program=GOOD)
    found = attempt(answerer)
    assert (found.answer, found.confidence, found.doubts) == (7, "confident", ())
    assert [a.prefix.name for a in answerer.asked] == ["program", "thought", "check"]
    assert [r.cause for r in found.routes] == ["answer", "answer"]
    assert {r.sandbox_level for r in found.routes if r.route == "program"} <= {
        "full",
        "kernel",
        "weak",
    }


@pytest.mark.usefixtures("scripted_sandbox")
@pytest.mark.parametrize(
    ("said", "answer", "doubt"),
    [
        ({"thought": "\\boxed{8}", "check": "\\boxed{8}", "program": GOOD}, 7, "routes disagree"),
        (
            {"thought": "\\boxed{7}", "check": "\\boxed{6}", "program": GOOD},
            7,
            "check did not hold",
        ),
        ({"thought": "\\boxed{7}", "check": "hm", "program": GOOD}, 7, "check did not hold"),
        (
            {"thought": "\\boxed{7}", "check": "\\boxed{7}", "program": "1/0\n```"},
            7,
            "no clean program",
        ),
        ({"thought": "no idea", "check": "", "program": GOOD}, 7, "no stated answer"),
        (
            {"thought": "\\boxed{1000}", "check": "", "program": "print(-3)\n```"},
            None,
            "no clean program",
        ),
    ],
)
def test_any_doubt_makes_it_uncertain(said: dict[str, str], answer: int | None, doubt: str) -> None:
    found = attempt(script(**said))
    assert (found.answer, found.confidence) == (answer, "uncertain")
    assert doubt in found.doubts


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("print(7)\nraise SystemExit(1)\n```", "program-error"),
        ("while True: pass\n```", "timeout"),
        ("print('seven')\n```", "no-integer"),
        ("x = 7\n```", "no-output"),
        ("print(1234)\n```", "out-of-range"),
        ("def solve(:\n```", "syntax-error"),
        ("def solve(): return 7", "cut-off"),
    ],
)
def test_the_cause_of_a_program_without_an_answer_is_named(program: str, cause: str) -> None:
    settings = Settings(routes=("program",), wall_seconds=1.0)
    [route] = attempt(script(program=program), settings=settings).routes
    assert (route.answer, route.cause) == (None, cause)


def test_a_program_that_forgets_to_print_is_completed() -> None:
    program = "def solve(n=50):\n    return n // 7\n```"
    assert attempt(script(program=program), settings=Settings(routes=("program",))).answer == 7


def test_arithmetic_in_a_stated_answer_is_computed() -> None:
    answerer = script(thought="\\boxed{\\frac{408}{2}}", check="\\boxed{204}")
    found = attempt(answerer, settings=Settings(routes=("thought",)))
    assert (found.answer, found.routes[0].held) == (204, True)


def test_a_response_that_was_cut_has_no_answer_and_no_check() -> None:
    answerer = script(thought="Let x be the")
    answerer.finish = "length"
    found = attempt(answerer, settings=Settings(routes=("thought",)))
    assert found.routes[0].cause == "cut-off"
    assert [a.prefix.name for a in answerer.asked] == ["thought"]


def test_a_check_never_replaces_the_answer() -> None:
    found = attempt(
        script(thought="\\boxed{8}", check="\\boxed{7}"),
        settings=Settings(routes=("thought",)),
    )
    assert (found.answer, found.routes[0].check_answer, found.routes[0].held) == (8, 7, False)


def test_the_router_puts_figures_to_thought_first_unless_they_are_counted() -> None:
    assert router.route_order(COUNT).routes == ("program", "thought")
    assert router.route_order(FIGURE).routes == ("thought", "program")
    assert router.route_order("How many triangles have integer sides?").routes == (
        "program",
        "thought",
    )
    assert router.route_order("Find x.").routes == ("program", "thought")
    assert router.route_order(FIGURE).figure_words == ("angle", "area", "triangle")


@pytest.mark.usefixtures("scripted_sandbox")
def test_a_budget_is_never_exceeded_and_the_second_route_gets_the_rest() -> None:
    answerer = script(thought="\\boxed{7}", check="\\boxed{7}", program=GOOD)
    answerer.n_out = 10_000
    found = attempt(answerer, settings=Settings(program_tokens=100, thought_tokens=100, budget=150))
    assert [a.max_tokens for a in answerer.asked] == [100, 50]
    assert sum(p.n_out for p in found.passes) == 150
    answerer = script(thought="\\boxed{7}", check="\\boxed{7}", program=GOOD)
    answerer.n_out = 10_000
    found = attempt(answerer, settings=Settings(program_tokens=100, budget=110))
    assert [r.cause for r in found.routes] == ["answer", "no-budget"]


@pytest.mark.usefixtures("scripted_sandbox")
def test_a_prompt_that_does_not_fit_is_a_cause() -> None:
    found = attempt(script(thought=ContextFull, program=GOOD))
    assert [r.cause for r in found.routes] == ["answer", "context-full"]
    assert found.answer == 7


def test_a_check_that_does_not_fit_keeps_the_answer() -> None:
    answerer = script(thought="\\boxed{7}", check=ContextFull)
    found = attempt(answerer, settings=Settings(routes=("thought",)))
    assert (found.answer, found.routes[0].held) == (7, None)


def test_every_pass_of_every_attempt_has_its_own_seed() -> None:
    seeds = [
        solver.pass_seed(seed, sha, k, pass_)
        for seed in (0, 1)
        for sha in ("a", "b")
        for k in range(20)
        for pass_ in ("thought", "check", "program")
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= s < 0xFFFFFFFF for s in seeds)


def test_repeats_that_would_be_one_sample_are_refused() -> None:
    with pytest.raises(UsageError, match="one sample"):
        Settings(attempts=3).checked()
    assert Settings(attempts=3, temperature=0.7).checked().attempts == 3


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"temperature": 3.0}, {"budget": 1}, {"thought_tokens": 0}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Settings(**wrong).checked()  # type: ignore[arg-type]


def test_no_function_of_the_solver_takes_a_gold() -> None:
    for module in (solver, prompts, router):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            assert not {"gold", "expected"} & set(inspect.signature(function).parameters), name
        assert "gold" not in inspect.getsource(module).replace("the gold is not a parameter", "")


@pytest.mark.usefixtures("scripted_sandbox")
def test_neither_gold_nor_solution_is_in_what_the_model_is_asked() -> None:
    answerer = script(thought="\\boxed{7}", check="\\boxed{7}", program=GOOD)
    attempt(answerer)
    assert [a.question for a in answerer.asked][:2] == [COUNT, COUNT]
    assert "Proposed solution:\n\\boxed{7}" in answerer.asked[2].question


@pytest.mark.usefixtures("scripted_sandbox")
def test_a_record_holds_no_text_of_the_problem_or_the_model() -> None:
    found = attempt(script(thought="secret words \\boxed{7}", check="\\boxed{7}", program=GOOD))
    problem = problems.Problem.of("p", COUNT, 7)
    reading = energy.Meter(None).reading()
    record = canonical(records.plain(run.attempt_record(problem, 0, found, reading))).decode()
    assert "secret words" not in record
    assert "divisible" not in record
    assert "def solve" not in record
    assert found.texts["thought"].text == "secret words \\boxed{7}"


# -- decisions over several attempts --


def test_a_tie_is_no_majority_and_no_answer() -> None:
    tied = solver.outcome([(1, "confident"), (2, "uncertain")])
    assert (tied.answer, tied.confidence, tied.vote.outcome) == (None, "uncertain", "no-majority")
    assert solver.outcome([(1, "uncertain"), (1, "confident"), (2, "uncertain")])[:2] == (
        1,
        "confident",
    )
    assert solver.outcome([(1, "confident"), (1, "confident"), (2, "confident")])[:2] == (
        1,
        "uncertain",
    )
    assert solver.outcome([(None, "uncertain")]).vote.outcome == "no-votes"


@limits(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(0, 4)), st.sampled_from(["confident", "uncertain"])
        ),
        max_size=9,
    )
)
def test_maj_at_k_is_the_vote_and_does_not_depend_on_order(
    attempts: list[tuple[int | None, solver.Confidence]],
) -> None:
    found = solver.outcome(attempts)
    assert found[:2] == solver.outcome(attempts[::-1])[:2]
    assert found.answer == answers.vote(a for a, _ in attempts).value
    assert found.confidence == "uncertain" or (found.answer, "confident") in attempts


@limits(deadline=None)
@given(
    st.one_of(st.none(), st.integers(0, 3)),
    st.one_of(st.none(), st.integers(0, 3)),
    st.sampled_from([None, True, False]),
)
def test_confident_means_that_nothing_was_in_doubt(
    thought: int | None, program: int | None, held: bool | None
) -> None:
    found = solver.decide(
        [
            RouteRecord(route="thought", answer=thought, cause="", held=held),
            RouteRecord(route="program", answer=program, cause=""),
        ]
    )
    assert (found.confidence == "confident") == (
        thought is not None and thought == program and bool(held)
    )
    assert found.answer == (thought if program is None else program)
    assert bool(found.doubts) == (found.confidence == "uncertain")


# -- runs --


def suite(n: int = 3) -> problems.Suite:
    listed = tuple(problems.Problem.of(f"p{i}", f"{COUNT} Variant {i}.", 7) for i in range(n))
    return problems.Suite("own", "jsonl", "0" * 64, listed, ())


def start(
    folder: Path, answerer: ScriptedAnswerer, settings: Settings, resume: bool = False, n: int = 3
) -> RunLog:
    header = run.header(suite(n), suite(n).problems, answerer, settings, graft=False)
    return RunLog.resume(folder, header) if resume else RunLog.create(folder, header)


@pytest.mark.usefixtures("scripted_sandbox")
def test_a_stopped_run_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    settings = Settings(attempts=2, temperature=0.7)
    answerer = script(thought="\\boxed{7}", check="\\boxed{7}", program=GOOD)
    stop = run.Stop()

    def after(progress: run.Progress) -> None:
        stop.wanted = progress.done == 4

    with start(tmp_path / "run", answerer, settings) as log:
        assert not run.solve_all(
            log, suite().problems, answerer, settings, stop=stop, on_attempt=after
        )
    asked = len(answerer.asked)
    assert asked == 4 * 3
    with start(tmp_path / "run", answerer, settings, resume=True) as log:
        assert run.solve_all(log, suite().problems, answerer, settings)
    assert len(answerer.asked) == 6 * 3
    assert len({a.sampling.seed for a in answerer.asked}) == 6 * 3
    summary = report.summarise(runlog.read(tmp_path / "run"))
    assert summary.complete
    assert summary.tokens_out == 6 * 3 * 40
    assert len(summary.run.sessions) == 2


@pytest.mark.usefixtures("scripted_sandbox")
def test_a_finished_run_asks_nothing_more(tmp_path: Path) -> None:
    answerer = script(thought="\\boxed{7}", check="\\boxed{7}", program=GOOD)
    for resume in (False, True):
        with start(tmp_path / "run", answerer, Settings(), resume) as log:
            assert run.solve_all(log, suite().problems, answerer, Settings())
        assert len(answerer.asked) == 9
    assert len(runlog.read(tmp_path / "run").sessions) == 1


@pytest.mark.usefixtures("scripted_sandbox")
def test_an_answerer_that_fails_loses_nothing_that_finished(tmp_path: Path) -> None:
    answerer = script(thought="\\boxed{7}", check="\\boxed{7}", program=GOOD)

    def fail(progress: run.Progress) -> None:
        answerer.says = {**answerer.says, "program": ConnectionError}

    with start(tmp_path / "run", answerer, Settings()) as log, pytest.raises(ConnectionError):
        run.solve_all(log, suite().problems, answerer, Settings(), on_attempt=fail)
    assert runlog.read(tmp_path / "run").done == {("p0", 0)}


@pytest.mark.usefixtures("scripted_sandbox")
def test_the_summary_counts_what_happened(tmp_path: Path) -> None:
    answerer = script(
        thought=["\\boxed{7}", "\\boxed{8}", "none"],
        check="\\boxed{7}",
        program=[GOOD, "print(9)\n```", "1/0\n```"],
    )
    with start(tmp_path / "run", answerer, Settings()) as log:
        run.solve_all(log, suite().problems, answerer, Settings())
    summary = report.summarise(runlog.read(tmp_path / "run"))
    assert (summary.accuracy.k, summary.accuracy.n) == (1, 3)
    # Wilson for 1 of 3, from a table
    assert summary.accuracy.low == pytest.approx(0.0615, abs=5e-4)
    assert summary.accuracy.high == pytest.approx(0.7923, abs=5e-4)
    assert dict(summary.matrix) == {
        ("confident", "right"): 1,
        ("uncertain", "wrong"): 1,
        ("uncertain", "none"): 1,
    }
    assert summary.causes["program", "wrong-answer"] == 1
    assert summary.causes["program", "program-error"] == 1
    assert summary.causes["thought", "no-answer"] == 1
    page = markdown.markdown(summary)
    assert "1/3 = 33.3% (Wilson 95 %: 6.1% to 79.2%, n = 3)" in page
    assert "| confident | 1 | 0 | 0 |" in page
    assert "not finished" not in page


@pytest.mark.usefixtures("scripted_sandbox")
def test_nothing_done_is_reported_without_a_division_by_zero(tmp_path: Path) -> None:
    answerer = script()
    start(tmp_path / "run", answerer, Settings()).close()
    summary = report.summarise(runlog.read(tmp_path / "run"))
    assert summary.seconds_left is None
    assert "not finished: 0 of 3" in markdown.markdown(summary)


def test_problems_are_reported_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    answerer = script(thought="\\boxed{7}", check="\\boxed{7}")
    settings = Settings(routes=("thought",))
    with start(tmp_path / "run", answerer, settings, n=12) as log:
        run.solve_all(log, suite(12).problems, answerer, settings)
    assert [r.id for r in report.summarise(runlog.read(tmp_path / "run")).results] == [
        f"p{i}" for i in range(12)
    ]
