"""Solving one problem: two routes to an answer, the order in which they are tried, and how sure the
result is.

The routes:

* *thought*: a chain of thought that ends in a stated answer, then a second pass that checks the
  proposed solution with fresh eyes. The check *holds* when it states the same integer. It never
  replaces an answer, it only makes it uncertain.
* *program*: a Python program that prints the answer, run in the sandbox. It *ran clean* when it
  ended by itself within its limits and its last line was one integer.

The router (`route_order`, version `ROUTER`): both routes are tried; the program goes first unless
the text speaks of a figure (`_FIGURE`) and not of a finite count (`_COUNT`). The order matters
under a budget: the first route may use all of it, the second what is left, and a route with fewer
than `MIN_TOKENS` left is skipped and says so.

The answer of an attempt: where both routes agree, that; else the program's, if it ran clean; else
the thought's. An integer outside 0..999 is no answer. An attempt is *confident* when the program
ran clean, the thought's check held, and both routes gave the same integer; otherwise it is
*uncertain*, with the reasons.

The outcome of a problem over K attempts is maj@k: the answer that most attempts gave; a tie for the
first place is "no majority" and no answer. It is confident when at least one attempt with that
answer was, and no attempt was confident of another one.

Everything here works on a problem's text: the gold is not a parameter of anything in this module.
It does not know files.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from galahad import sandbox
from galahad.answerer.answerer import (
    Answerer,
    Completion,
    Request,
    Sampling,
    SharedPrefix,
    one,
)
from galahad.measure.canonical import sha256_of
from galahad.problems.problem import GOLDS
from galahad.responses import integer as answers
from galahad.responses import program as programs
from taliesin.errors import ContextFull, UsageError

Route = Literal["thought", "program"]
Pass = Literal["thought", "check", "program"]
Confidence = Literal["confident", "uncertain"]
ROUTES: tuple[Route, ...] = ("thought", "program")

ROUTER = "program first unless a figure and no count, 1"
RULE = "confident: program ran clean, check held, both routes agree, 1"
MIN_TOKENS = 32
_MAX_QUOTED = 6000  # characters of a proposed solution that the check is shown, its end

PREFIXES: dict[str, str] = {
    "thought": """\
Solve the mathematics problem at the end. Its answer is an integer from 0 to 999.

Reason step by step in short lines of plain text, like notes: what is unknown, the equations or the count, each calculation.
No introduction, no headings, no LaTeX, no repetition; at most 150 words. Test the result against the conditions.
The last line must be the final answer as a plain integer in a box, like this: \\boxed{42}

Problem:""",
    "check": """\
You check a proposed solution of a mathematics problem. The answer is an integer from 0 to 999. The solution may be wrong.

Recompute the decisive quantities yourself, in another way than the solution does where you can, and test the proposed answer
against each condition of the problem. Short lines of plain text, no headings, no LaTeX, at most 80 words. Then decide.
The last line must be the answer that you find right, as a plain integer in a box, like this: \\boxed{42}

Problem and proposed solution:""",
    "program": """\
Write a Python program that computes the answer of the mathematics problem at the end. The answer is an integer from 0 to 999.

Rules:
- Define solve with the numbers of the problem as parameters with default values, and end with print(solve()).
- Prefer exhaustive search over insight: enumerate all cases and test each condition of the problem as it is stated.
- Exact arithmetic only: int, fractions.Fraction, math, itertools, sympy. No floating point, no input, no files.
- Nothing but the answer is printed. The program must end within ten seconds.
- Answer with one Python code block and nothing else.

Example problem: How many positive integers less than 1000 are divisible by 6 and have a digit sum of 9?

```python
def solve(limit=1000, divisor=6, digit_sum=9):
    count = 0
    for n in range(1, limit):
        if n % divisor == 0 and sum(map(int, str(n))) == digit_sum:
            count += 1
    return count

print(solve())
```

Problem:""",
}
_OPENING: dict[Pass, str] = {"thought": "", "check": "", "program": "```python\n"}
_END: dict[Pass, str] = {"thought": "", "check": "", "program": "\n```"}


# -- the router ------------------------------------------------------------------------------------

_FIGURE = re.compile(
    r"\b(?:triangle|circle|square|rectangle|hexagon|octagon|polygon|parallelogram|trapezoid|quadrilateral|sphere|cube|cone"
    r"|cylinder|tetrahedron|angle|perpendicular|parallel|tangent|radius|diameter|circumcircle|incircle|midpoint|area|volume"
    r"|perimeter|side length)s?\b",
    re.I,
)
_COUNT = re.compile(
    r"\b(?:how many|number "
    r"of|ways|probability|integers?|digits?|divisors?|divisible|remainder|modulo|primes?|subsets?"
    r"|permutations?|sequence|recurrence|ordered (?:pairs?|triples?|tuples?)|least "
    r"positive|coloring|colouring)\b",
    re.I,
)


class Order(NamedTuple):
    """The order of the routes, and the words of the problem that decided it."""

    routes: tuple[Route, ...]
    figure_words: tuple[str, ...]
    count_words: tuple[str, ...]


def route_order(problem: str) -> Order:
    """The router's rule (top of this module) applied to a problem's text."""
    figure = tuple(sorted({m[0].lower() for m in _FIGURE.finditer(problem)}))
    count = tuple(sorted({m[0].lower() for m in _COUNT.finditer(problem)}))
    program_first = not figure or bool(count)
    return Order(("program", "thought") if program_first else ("thought", "program"), figure, count)


# -- settings --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """How attempts are made. Tokens are output tokens of one pass; `budget` those of a whole
    attempt, None without a limit.

    Raises:
        UsageError: a value out of range, or several attempts that would all be the same sample.
    """

    routes: tuple[Route, ...] = ROUTES
    thought_tokens: int = 1024
    check_tokens: int = 512
    program_tokens: int = 768
    budget: int | None = None
    attempts: int = 1
    temperature: float = 0.0
    seed: int = 0
    wall_seconds: float = 10.0
    allow_weak: bool = False

    def __post_init__(self) -> None:
        for name in ("thought_tokens", "check_tokens", "program_tokens", "budget"):
            value = getattr(self, name)
            if value is not None and value < MIN_TOKENS:
                raise UsageError(
                    f"--{name.replace('_', '-')} is too small",
                    expected=f"at least {MIN_TOKENS}",
                    got=value,
                )
        if self.attempts < 1:
            raise UsageError("attempts is out of range", expected="at least 1", got=self.attempts)
        if not 0 <= self.temperature <= 2:
            raise UsageError(
                "the temperature is out of range", expected="0..2", got=self.temperature
            )
        if self.attempts > 1 and self.temperature == 0:
            raise UsageError(
                "several attempts at temperature 0 are one sample",
                hint="--temperature 0.7, or one attempt",
            )

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "routes": list(self.routes)}


def pass_seed(seed: int, problem_sha256: str, attempt: int, pass_: Pass) -> int:
    """The sampler's seed of one pass, in 0..2^32-2: another one for every problem, attempt and
    pass, the same on every machine.
    """
    text = f"{seed}|{problem_sha256}|{attempt}|{pass_}"
    return (
        int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 0xFFFFFFFF
    )  # llama.cpp: 2^32-1 is "random"


def prompts_sha256() -> str:
    """The SHA-256 of everything that this module says to a model."""
    parts = [*PREFIXES.items(), *_OPENING.items(), *_END.items(), _check_question("P", "S")]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _check_question(problem: str, solution: str) -> str:
    return f"{problem}\n\nProposed solution:\n{solution[-_MAX_QUOTED:]}\n\nEnd of the proposed solution."


# -- an attempt ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PassRecord:
    """One generation: what it cost, and the hashes of its question and of its text, which are in
    the transcript.
    """

    name: Pass
    seed: int
    question_sha256: str
    text_sha256: str
    finish: str
    n_reused: int
    n_prefilled: int
    n_out: int
    reuse_seconds: float
    prefill_seconds: float
    decode_seconds: float


@dataclass(frozen=True)
class RouteRecord:
    """What a route came to. `answer` is an integer in 0..999 or None; `cause` says why there is
    none ("answer" if there is).

    `held`: whether the check stated the same integer (None: no check was made), `check_answer` what
    it stated. `clean`: whether the program ran clean (None: none was run). `detail` names the
    program's end without quoting anything of it.
    """

    route: Route
    answer: int | None
    cause: str
    held: bool | None = None
    check_answer: int | None = None
    clean: bool | None = None
    program_sha256: str | None = None
    sandbox_level: str | None = None
    sandbox_seconds: float | None = None


@dataclass(frozen=True)
class Attempt:
    """One attempt at a problem. `texts` are the responses and questions by pass, `program` the
    source that was run.
    """

    answer: int | None
    confidence: Confidence
    doubts: tuple[str, ...]
    order: Order
    routes: tuple[RouteRecord, ...]
    passes: tuple[PassRecord, ...]
    seconds: float
    texts: dict[str, dict[str, str]]
    program: str | None

    def as_record(self) -> dict[str, Any]:
        """The attempt without any text of a problem or of a model, JSON-ready. The router's words
        are counted, not quoted.
        """
        return {
            "answer": self.answer,
            "confidence": self.confidence,
            "doubts": list(self.doubts),
            "order": list(self.order.routes),
            "figure_words": len(self.order.figure_words),
            "count_words": len(self.order.count_words),
            "routes": [asdict(route) for route in self.routes],
            "passes": [asdict(one) for one in self.passes],
            "tokens_in": sum(p.n_prefilled + p.n_reused for p in self.passes),
            "tokens_out": sum(p.n_out for p in self.passes),
            "seconds": self.seconds,
        }

    def as_transcript(self) -> dict[str, Any]:
        return {"passes": self.texts, "program": self.program}


@dataclass
class _Work:
    """An attempt in the making."""

    answerer: Answerer
    problem: str
    problem_sha256: str
    attempt: int
    settings: Settings
    passes: list[PassRecord] = field(default_factory=list)
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    program: str | None = None

    def ask(self, pass_: Pass, question: str, max_tokens: int) -> Completion | None:
        """The completion of one pass, recorded; None where the budget leaves no room for it."""
        settings = self.settings
        if settings.budget is not None:
            max_tokens = min(max_tokens, settings.budget - sum(p.n_out for p in self.passes))
        if max_tokens < MIN_TOKENS:
            return None
        seed = pass_seed(settings.seed, self.problem_sha256, self.attempt, pass_)
        request = Request(
            prefix=SharedPrefix(pass_),
            question=question,
            max_tokens=max_tokens,
            sampling=Sampling(temperature=settings.temperature, seed=seed),
            opening=_OPENING[pass_],
            end=_END[pass_],
        )
        completion = one(self.answerer, request)
        self.texts[pass_] = {"question": question, "text": completion.text}
        self.passes.append(
            PassRecord(
                name=pass_,
                seed=seed,
                question_sha256=sha256_of(question),
                text_sha256=sha256_of(completion.text),
                finish=completion.finish,
                n_reused=completion.n_reused,
                n_prefilled=completion.n_prefilled,
                n_out=completion.n_out,
                reuse_seconds=completion.reuse_seconds,
                prefill_seconds=completion.prefill_seconds,
                decode_seconds=completion.decode_seconds,
            )
        )
        return completion

    def run(self, source: str) -> sandbox.Execution:
        limits = sandbox.Limits(
            wall_seconds=self.settings.wall_seconds,
            cpu_seconds=max(1, int(self.settings.wall_seconds)),
        )
        return sandbox.run(source, limits=limits, allow_weak=self.settings.allow_weak)

    def stated(self, completion: Completion) -> tuple[int | None, str]:
        """The integer that a response states, in 0..999, and the cause where there is none."""
        found = answers.resolve(answers.extract(completion.text), self.run)
        if found.value is None:
            # A text that was cut before it stated anything was cut: that is the cause.
            cut = completion.finish == "length" and found.reason == "no-answer"
            return None, "cut-off" if cut else found.reason
        return (found.value, "answer") if found.value in GOLDS else (None, "out-of-range")

    def thought(self) -> RouteRecord:
        thought = self.ask("thought", self.problem, self.settings.thought_tokens)
        if thought is None:
            return RouteRecord("thought", None, "no-budget")
        answer, cause = self.stated(thought)
        if answer is None:
            return RouteRecord("thought", None, cause)
        try:
            checked = self.ask(
                "check", _check_question(self.problem, thought.text), self.settings.check_tokens
            )
        except ContextFull:
            checked = None
        if checked is None:
            return RouteRecord("thought", answer, "answer")
        second, _ = self.stated(checked)
        return RouteRecord("thought", answer, "answer", held=second == answer, check_answer=second)

    def programmed(self) -> RouteRecord:
        completion = self.ask("program", self.problem, self.settings.program_tokens)
        if completion is None:
            return RouteRecord("program", None, "no-budget")
        found = programs.extract(completion.text)
        if found.source is None:
            return RouteRecord(
                "program", None, "cut-off" if found.reason == "unfinished" else found.reason
            )
        self.program = source = programs.complete(found.source)
        sha256 = sha256_of(source)
        verdict = sandbox.judge(self.run(source))
        clean = verdict.verdict == "verified"
        in_range = verdict.answer in GOLDS if verdict.answer is not None else True
        return RouteRecord(
            "program",
            verdict.answer if clean and in_range else None,
            verdict.cause if in_range else "out-of-range",
            clean=clean,
            program_sha256=sha256,
            sandbox_level=verdict.execution.level,
            sandbox_seconds=verdict.execution.wall_seconds,
        )


def solve(
    answerer: Answerer, problem: str, problem_sha256: str, attempt: int, settings: Settings
) -> Attempt:
    """One attempt at a problem, by both routes in the router's order. A prompt that does not fit is
    a cause, not an error.

    Raises:
        SandboxUnavailable: this host cannot isolate a program. ServerError, DecodeError: the answerer
        failed.
    """
    started = time.perf_counter()
    order = route_order(problem)
    work = _Work(answerer, problem, problem_sha256, attempt, settings)
    methods: dict[Route, Callable[[], RouteRecord]] = {
        "thought": work.thought,
        "program": work.programmed,
    }
    found: list[RouteRecord] = []
    for route in order.routes:
        if route in settings.routes:
            try:
                found.append(methods[route]())
            except ContextFull:
                found.append(RouteRecord(route, None, "context-full"))
    answer, confidence, doubts = decide(found)
    seconds = time.perf_counter() - started
    return Attempt(
        answer,
        confidence,
        doubts,
        order,
        tuple(found),
        tuple(work.passes),
        seconds,
        work.texts,
        work.program,
    )


class Decision(NamedTuple):
    answer: int | None
    confidence: Confidence
    doubts: tuple[str, ...]


def decide(routes: Iterable[RouteRecord]) -> Decision:
    """The answer of an attempt and its confidence, by the rule at the top of this module."""
    by_name = {route.route: route for route in routes}
    thought, program = by_name.get("thought"), by_name.get("program")
    by_thought = thought.answer if thought else None
    by_program = program.answer if program else None
    doubts = []
    if by_program is None:
        doubts.append("no clean program")
    if by_thought is None:
        doubts.append("no stated answer")
    elif thought is None or not thought.held:
        doubts.append("check did not hold")
    if by_program is not None and by_thought is not None and by_program != by_thought:
        doubts.append("routes disagree")
    answer = by_program if by_program is not None else by_thought
    return Decision(answer, "uncertain" if doubts else "confident", tuple(doubts))


class Outcome(NamedTuple):
    """What K attempts at a problem came to. `vote` has the counts; `answer` is None without a
    majority or without answers.
    """

    answer: int | None
    confidence: Confidence
    vote: answers.Vote


def outcome(attempts: Iterable[tuple[int | None, Confidence]]) -> Outcome:
    """maj@k over (answer, confidence) of attempts, by the rule at the top of this module."""
    listed = list(attempts)
    vote = answers.vote(answer for answer, _ in listed)
    sure_of = {answer for answer, confidence in listed if confidence == "confident"}
    confident = vote.value is not None and sure_of == {vote.value}
    return Outcome(vote.value, "confident" if confident else "uncertain", vote)
