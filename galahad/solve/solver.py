"""Solving one problem: two routes to an answer, the order in which they are tried, and how sure the
result is.

The routes:

* *thought*: a chain of thought that ends in a stated answer, then a second pass that checks the
  proposed solution with fresh eyes. The check *holds* when it states the same integer. It never
  replaces an answer, it only makes it uncertain.
* *program*: a Python program that prints the answer, run in the sandbox. It *ran clean* when it
  ended by itself within its limits and its last line was one integer.

Both are tried, in the order that `galahad.solve.router` chooses. The order matters under a budget:
the first route may use all of it, the second what is left, and a route with fewer than `MIN_TOKENS`
left is skipped and says so.

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
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, Self

from msgspec import Meta

from galahad import sandbox
from galahad.answerer.answerer import (
    Answerer,
    Completion,
    Finish,
    Request,
    Sampling,
    SharedPrefix,
    one,
)
from galahad.measure.canonical import sha256_of
from galahad.measure.energy import Seconds
from galahad.problems.problem import GOLDS
from galahad.responses import integer as answers
from galahad.responses import program as programs
from galahad.solve import prompts
from galahad.solve.prompts import Pass
from galahad.solve.router import ROUTES, Order, Route, route_order
from taliesin.errors import ContextFull, UsageError
from taliesin.host.records import Record

Confidence = Literal["confident", "uncertain"]

RULE = "confident: program ran clean, check held, both routes agree, 1"
MIN_TOKENS = 32

# What any program can count or time; a record with more was not written here.
Count = Annotated[int, Meta(ge=0, le=1 << 53)]


# -- settings --------------------------------------------------------------------------------------


class Settings(Record):
    """How attempts are made. Tokens are output tokens of one pass; `budget` those of a whole
    attempt, None without a limit.
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

    def checked(self) -> Self:
        """These settings.

        Raises:
            UsageError: a value out of range, or several attempts that would all be the same sample.
        """
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
        return self


def pass_seed(seed: int, problem_sha256: str, attempt: int, pass_: Pass) -> int:
    """The sampler's seed of one pass, in 0..2^32-2: another one for every problem, attempt and
    pass, the same on every machine.
    """
    text = f"{seed}|{problem_sha256}|{attempt}|{pass_}"
    return (
        int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 0xFFFFFFFF
    )  # llama.cpp: 2^32-1 is "random"


# -- an attempt ------------------------------------------------------------------------------------


class PassRecord(Record):
    """One generation: what it cost, and the hashes of its question and of its text, which are in
    the transcript.
    """

    name: Pass
    seed: int
    question_sha256: str
    text_sha256: str
    finish: Finish
    n_reused: Count
    n_prefilled: Count
    n_out: Count
    reuse_seconds: Seconds
    prefill_seconds: Seconds
    decode_seconds: Seconds


class PassText(Record):
    """What one pass was asked, behind its prefix, and what the model said."""

    question: str
    text: str


class RouteRecord(Record):
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
    sandbox_seconds: Seconds | None = None


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
    texts: dict[Pass, PassText]
    program: str | None

    @property
    def tokens_in(self) -> int:
        return sum(record.n_prefilled + record.n_reused for record in self.passes)

    @property
    def tokens_out(self) -> int:
        return sum(record.n_out for record in self.passes)


@dataclass
class _Work:
    """An attempt in the making."""

    answerer: Answerer
    problem: str
    problem_sha256: str
    attempt: int
    settings: Settings
    passes: list[PassRecord] = field(default_factory=list)
    texts: dict[Pass, PassText] = field(default_factory=dict)
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
            opening=prompts.OPENING[pass_],
            end=prompts.END[pass_],
        )
        completion = one(self.answerer, request)
        self.texts[pass_] = PassText(question=question, text=completion.text)
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
            return RouteRecord(route="thought", answer=None, cause="no-budget")
        answer, cause = self.stated(thought)
        if answer is None:
            return RouteRecord(route="thought", answer=None, cause=cause)
        try:
            checked = self.ask(
                "check",
                prompts.check_question(self.problem, thought.text),
                self.settings.check_tokens,
            )
        except ContextFull:
            checked = None
        if checked is None:
            return RouteRecord(route="thought", answer=answer, cause="answer")
        second, _ = self.stated(checked)
        return RouteRecord(
            route="thought",
            answer=answer,
            cause="answer",
            held=second == answer,
            check_answer=second,
        )

    def programmed(self) -> RouteRecord:
        completion = self.ask("program", self.problem, self.settings.program_tokens)
        if completion is None:
            return RouteRecord(route="program", answer=None, cause="no-budget")
        found = programs.extract(completion.text)
        if found.source is None:
            cause = "cut-off" if found.reason == "unfinished" else found.reason
            return RouteRecord(route="program", answer=None, cause=cause)
        self.program = source = programs.complete(found.source)
        sha256 = sha256_of(source)
        verdict = sandbox.judge(self.run(source))
        clean = verdict.verdict == "verified"
        in_range = verdict.answer in GOLDS if verdict.answer is not None else True
        return RouteRecord(
            route="program",
            answer=verdict.answer if clean and in_range else None,
            cause=verdict.cause if in_range else "out-of-range",
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
        SandboxUnavailable: this host cannot isolate a program. ServerError, DecodeError: the
        answerer failed.
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
                found.append(RouteRecord(route=route, answer=None, cause="context-full"))
    answer, confidence, doubts = decide(found)
    seconds = time.perf_counter() - started
    return Attempt(
        answer=answer,
        confidence=confidence,
        doubts=doubts,
        order=order,
        routes=tuple(found),
        passes=tuple(work.passes),
        seconds=seconds,
        texts=work.texts,
        program=work.program,
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


class ProblemOutcome(NamedTuple):
    """What K attempts at a problem came to. `vote` has the counts; `answer` is None without a
    majority or without answers.
    """

    answer: int | None
    confidence: Confidence
    vote: answers.Vote


def outcome(attempts: Iterable[tuple[int | None, Confidence]]) -> ProblemOutcome:
    """maj@k over (answer, confidence) of attempts, by the rule at the top of this module."""
    listed = list(attempts)
    vote = answers.vote(answer for answer, _ in listed)
    sure_of = {answer for answer, confidence in listed if confidence == "confident"}
    confident = vote.value is not None and sure_of == {vote.value}
    return ProblemOutcome(vote.value, "confident" if confident else "uncertain", vote)
