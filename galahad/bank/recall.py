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
there and is found, not whether the model can solve anything. `galahad.bank.bank.transfer` measures
that. The gold only grades.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from galahad.answerer.engines import Completion
from galahad.answerer.reader import Reader
from galahad.bank.bank import Bank
from galahad.measure.arm import Row
from galahad.problems.problem import GOLDS, Problem
from galahad.responses import integer as answers
from galahad.solve import solver
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
    reader: Reader,
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
            yield _row(problem, None, "abstained", None, None, started, detail)
            continue
        entry = bank.get(route.block.name)
        question = QUOTED.format(problem=problem.problem) if quote else QUESTION
        made = reader.ask(
            bank.library,
            entry.block(reader.model_sha256),
            question,
            max_tokens=MAX_DIGIT_TOKENS,
            grammar=DIGITS,
            opening=OPENING,
        )
        cause = "answer" if entry.sha256 == problem.sha256 else "wrong-block"
        yield _row(problem, _digits(made.text), cause, entry.id, made, started, detail)


def merged(problems: Sequence[Problem], bank: Bank, reader: Reader) -> Iterator[Row]:
    """The first row waits for the prefix of all entries to be prefilled and saved; its time is not
    in any row.
    """
    saved = bank.save_merged(reader)
    by_answer = {entry.answer: entry.id for entry in bank.entries()}
    for problem in problems:
        started = time.perf_counter()
        made = reader.ask(
            bank.library,
            saved.name,
            QUOTED.format(problem=problem.problem),
            max_tokens=MAX_DIGIT_TOKENS,
            grammar=DIGITS,
            opening=OPENING,
        )
        answer = _digits(made.text)
        others = answer is not None and answer != problem.answer and answer in by_answer
        detail = {
            "n_merged_tokens": saved.n_tokens,
            "answer_of": by_answer.get(answer) if answer is not None else None,
        }
        cause = "another-problems-answer" if others else "answer"
        yield _row(problem, answer, cause, "merged", made, started, detail)


def direct(problems: Sequence[Problem], reader: Reader) -> Iterator[Row]:
    for problem in problems:
        started = time.perf_counter()
        question = DIRECT.format(problem=problem.problem)
        made = reader.ask(None, None, question, max_tokens=MAX_DIGIT_TOKENS, grammar=DIGITS)
        yield _row(problem, _digits(made.text), "answer", None, made, started, {})


def card(
    problems: Sequence[Problem], reader: Reader, text: str, *, max_tokens: int
) -> Iterator[Row]:
    """`text` is the method card."""
    for problem in problems:
        started = time.perf_counter()
        question = f"{text.strip()}\n\nProblem:\n{problem.problem}"
        made = reader.ask(None, None, question, max_tokens=max_tokens)
        answer, cause = _stated(made)
        yield _row(problem, answer, cause, None, made, started, {})


def best_of(
    problems: Sequence[Problem],
    reader: Reader,
    k: int,
    *,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> Iterator[Row]:
    """`max_tokens` bounds one chain of thought."""
    for problem in problems:
        started = time.perf_counter()
        made, stated = [], []
        for attempt in range(k):
            one = reader.ask(
                None,
                None,
                f"{solver.PREFIXES['thought']}\n\n{problem.problem}",
                max_tokens=max_tokens,
                temperature=temperature,
                seed=solver.pass_seed(seed, problem.sha256, attempt, "thought"),
            )
            made.append(one)
            stated.append(_stated(one))
        vote = answers.vote(answer for answer, _ in stated)
        detail = {
            "any_right": any(answer == problem.answer for answer, _ in stated),
            "vote": vote.outcome,
            "attempts": [
                {"answer": answer, "cause": cause, "n_out": one.n_out, "finish": one.finish}
                for (answer, cause), one in zip(stated, made, strict=True)
            ],
        }
        total = Completion(
            "",
            "stop",
            sum(one.n_reused for one in made),
            sum(one.n_prefilled for one in made),
            sum(one.n_out for one in made),
            sum(one.reuse_seconds for one in made),
            sum(one.prefill_seconds for one in made),
            sum(one.decode_seconds for one in made),
        )
        yield _row(problem, vote.value, vote.outcome, None, total, started, detail, k)


def _digits(text: str) -> int | None:
    digits = text.removeprefix(OPENING)
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _stated(made: Completion) -> tuple[int | None, str]:
    """The integer that a text commits itself to, in 0..999, and the cause where there is none."""
    found = answers.resolve(answers.extract(made.text))
    if found.value is None:
        return None, "cut-off" if made.finish == "length" else found.reason
    return (found.value, "answer") if found.value in GOLDS else (None, "out-of-range")


def _row(
    problem: Problem,
    answer: int | None,
    cause: str,
    block: str | None,
    made: Completion | None,
    started: float,
    detail: dict[str, Any],
    n_attempts: int = 1,
) -> Row:
    seconds = time.perf_counter() - started
    told = grade(answer, problem.answer)
    if made is None:
        return Row(
            problem.id,
            problem.sha256,
            problem.answer,
            answer,
            told,
            cause,
            block,
            0,
            0,
            0,
            0,
            seconds,
            detail,
        )
    return Row(
        problem.id,
        problem.sha256,
        problem.answer,
        answer,
        told,
        cause,
        block,
        n_attempts,
        made.n_reused,
        made.n_prefilled,
        made.n_out,
        seconds,
        {
            **detail,
            "reuse_seconds": made.reuse_seconds,
            "prefill_seconds": made.prefill_seconds,
            "decode_seconds": made.decode_seconds,
        },
    )
