"""Asking for answers: from the bank's block, and in the ways that this is compared with.

* `routed`: one block or none by the router, grafted, and the answer read back under a grammar of at
  most three digits.
* `merged`: all entries in one prefix, the same question; the ablation of one block for each
  problem.
* `direct`: no block, the answer at once under the same grammar.
* `card`: no block, a method card before the problem that the model is told to follow; free text.
* `best_of`: no block, K sampled chains of thought; the majority answers, and whether any was right
  is kept beside it.

Recall reads an answer that stands in the block: it measures whether the block holds what was put
there and is found, not whether the model can solve anything. `galahad.bank.transfer` measures
that. The gold only grades.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from galahad.answerer.answerer import (
    Answerer,
    BlockAnswerer,
    BlockPrefix,
    Completion,
    Request,
    Sampling,
    in_order,
    one,
)
from galahad.bank.bank import Bank
from galahad.measure.arm import Row
from galahad.problems.problem import GOLDS, Problem
from galahad.responses import integer as answers
from galahad.solve import solver
from galahad.solve.prompts import PREFIXES
from galahad.solve.run import grade

if TYPE_CHECKING:
    from taliesin.ask.router import Router

DIGITS = "root ::= [0-9] [0-9]? [0-9]?"
MAX_DIGIT_TOKENS = 4  # one for each digit, and the one that stops
OPENING = "Verified answer: "
"""How a recalled answer begins, as the line in the block that it is read from does: a model of 135M
parameters then finds it.
"""

QUESTION = "What is the verified answer to the problem above? Reply with the integer only."
QUOTED = (
    "Find this problem above:\n{problem}\n\nWhat is the verified answer to this problem? Reply "
    "with the integer only."
)
DIRECT = "{problem}\n\nReply with the integer only."


def routed(
    problems: Sequence[Problem],
    bank: Bank,
    answerer: BlockAnswerer,
    router: Router,
    *,
    threshold: float,
    quote: bool = False,
) -> Iterator[Row]:
    """`quote` repeats the problem in the question, as `merged` must; without it the routed block
    alone says what is asked.

    Raises:
        BankError: an entry without a block of this model.
    """
    for problem in problems:
        started = time.perf_counter()
        route = router.route(problem.problem, threshold=threshold)
        detail: dict[str, Any] = {
            "coverage": route.block.coverage if route.block else None,
            "reason": route.reason,
            "route_seconds": route.seconds,
        }
        if route.block is None:
            yield _row(problem, started, cause="abstained", detail=detail)
            continue
        entry = bank.get(route.block.name)
        question = QUOTED.format(problem=problem.problem) if quote else QUESTION
        block = BlockPrefix(bank.library, entry.block(answerer.model_sha256))
        completion = one(answerer, _read_back(block, question))
        cause = "answer" if entry.sha256 == problem.sha256 else "wrong-block"
        yield _row(
            problem,
            started,
            answer=_digits(completion.text),
            cause=cause,
            block=entry.id,
            costs=[completion],
            detail=detail,
        )


def merged(problems: Sequence[Problem], bank: Bank, answerer: BlockAnswerer) -> Iterator[Row]:
    """The first row waits for the prefix of all entries to be prefilled and saved; its time is not
    in any row.
    """
    saved = bank.save_merged(answerer)
    by_answer = {entry.answer: entry.id for entry in bank.entries()}
    for problem in problems:
        started = time.perf_counter()
        question = QUOTED.format(problem=problem.problem)
        completion = one(answerer, _read_back(BlockPrefix(bank.library, saved.name), question))
        answer = _digits(completion.text)
        others = answer is not None and answer != problem.answer and answer in by_answer
        detail = {
            "n_merged_tokens": saved.n_tokens,
            "answer_of": by_answer.get(answer) if answer is not None else None,
        }
        cause = "another-problems-answer" if others else "answer"
        yield _row(
            problem,
            started,
            answer=answer,
            cause=cause,
            block="merged",
            costs=[completion],
            detail=detail,
        )


def direct(problems: Sequence[Problem], answerer: Answerer) -> Iterator[Row]:
    for problem in problems:
        started = time.perf_counter()
        request = Request(
            question=DIRECT.format(problem=problem.problem),
            max_tokens=MAX_DIGIT_TOKENS,
            sampling=Sampling(grammar=DIGITS),
        )
        completion = one(answerer, request)
        answer = _digits(completion.text)
        yield _row(problem, started, answer=answer, cause="answer", costs=[completion])


def card(
    problems: Sequence[Problem], answerer: Answerer, text: str, *, max_tokens: int
) -> Iterator[Row]:
    """`text` is the method card."""
    for problem in problems:
        started = time.perf_counter()
        question = f"{text.strip()}\n\nProblem:\n{problem.problem}"
        completion = one(answerer, Request(question=question, max_tokens=max_tokens))
        answer, cause = _stated(completion)
        yield _row(problem, started, answer=answer, cause=cause, costs=[completion])


def best_of(
    problems: Sequence[Problem],
    answerer: Answerer,
    k: int,
    *,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> Iterator[Row]:
    """`max_tokens` bounds one chain of thought."""
    for problem in problems:
        started = time.perf_counter()
        requests = [
            Request(
                question=f"{PREFIXES['thought']}\n\n{problem.problem}",
                max_tokens=max_tokens,
                sampling=Sampling(
                    temperature=temperature,
                    seed=solver.pass_seed(seed, problem.sha256, attempt, "thought"),
                ),
            )
            for attempt in range(k)
        ]
        completions = in_order(answerer, requests)
        stated = [_stated(completion) for completion in completions]
        vote = answers.vote(answer for answer, _ in stated)
        detail = {
            "any_right": any(answer == problem.answer for answer, _ in stated),
            "vote": vote.outcome,
            "attempts": [
                {
                    "answer": answer,
                    "cause": cause,
                    "n_out": completion.n_out,
                    "finish": completion.finish,
                }
                for (answer, cause), completion in zip(stated, completions, strict=True)
            ],
        }
        yield _row(
            problem,
            started,
            answer=vote.value,
            cause=vote.outcome,
            costs=completions,
            detail=detail,
        )


def _read_back(block: BlockPrefix, question: str) -> Request:
    """An answer of at most three digits, as the line in the block that it is read from."""
    return Request(
        prefix=block,
        question=question,
        max_tokens=MAX_DIGIT_TOKENS,
        sampling=Sampling(grammar=DIGITS),
        opening=OPENING,
    )


def _digits(text: str) -> int | None:
    digits = text.removeprefix(OPENING)
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _stated(completion: Completion) -> tuple[int | None, str]:
    """The integer that a text commits itself to, in 0..999, and the cause where there is none."""
    found = answers.resolve(answers.extract(completion.text))
    if found.value is None:
        return None, "cut-off" if completion.finish == "length" else found.reason
    return (found.value, "answer") if found.value in GOLDS else (None, "out-of-range")


def _row(
    problem: Problem,
    started: float,
    *,
    cause: str,
    answer: int | None = None,
    block: str | None = None,
    costs: Sequence[Completion] = (),
    detail: Mapping[str, Any] | None = None,
) -> Row:
    """The graded row of a problem; tokens and seconds are sums over the completions in `costs`."""
    seconds = time.perf_counter() - started
    phases = {
        name: sum(getattr(completion, name) for completion in costs)
        for name in ("reuse_seconds", "prefill_seconds", "decode_seconds")
    }
    return Row(
        id=problem.id,
        sha256=problem.sha256,
        gold=problem.answer,
        answer=answer,
        grade=grade(answer, problem.answer),
        cause=cause,
        block=block,
        n_attempts=len(costs),
        n_reused=sum(completion.n_reused for completion in costs),
        n_prefilled=sum(completion.n_prefilled for completion in costs),
        n_out=sum(completion.n_out for completion in costs),
        seconds=seconds,
        detail={**(detail or {}), **(phases if costs else {})},
    )
