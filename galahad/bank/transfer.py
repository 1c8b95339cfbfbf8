"""Transfer: a variant of a banked problem is routed, the block grafted, the program adapted by the
model, run, and graded.

Two ways to adapt. *arguments*: the model writes one call of `solve` with the variant's numbers,
under a grammar made from the program's parameters; only a program with parameters can be adapted
so. *program*: the model writes the whole program anew.

Every failure has one cause, the first of these that holds: no-block, wrong-block, no-program,
constant-baked-in (numbers of the problem stand in the banked program's logic, and the adapted one
still has the same), constant-replaced-wrongly (a parameter is not the variant's, or the constants
of the logic are not the banked program's), timeout, did-not-run, wrong-number. How the program
ended is kept beside it. The gold only grades.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from galahad import sandbox
from galahad.answerer.answerer import (
    BlockAnswerer,
    BlockPrefix,
    Completion,
    Request,
    Sampling,
    one,
)
from galahad.bank.bank import Bank
from galahad.bank.entry import Entry
from galahad.measure.arm import Row
from galahad.measure.canonical import sha256_of
from galahad.measure.stats import Proportion
from galahad.problems.variants import Variant
from galahad.responses import program as programs
from galahad.solve.run import grade
from taliesin.errors import UsageError

if TYPE_CHECKING:
    from taliesin.ask.router import Router

Adapt = Literal["auto", "arguments", "program"]
Judge = Callable[[str], sandbox.Verdict]
MAX_ARGUMENT_TOKENS = 160
MAX_PROGRAM_TOKENS = 900

ARGUMENTS = (
    "A new problem of the same kind, with other numbers:\n{problem}\n\n"
    "Write the call of solve for the new problem. Take every argument from the new problem's text."
)
PROGRAM = (
    "A new problem of the same kind, with other numbers:\n{problem}\n\n"
    "Write the program above again for the new problem: the same code, with the default values "
    "of solve replaced by the numbers of the "
    "new problem. Answer with one Python code block."
)


class Adapted(NamedTuple):
    """What the model made of a program. `source` is None where it made none, for `cause`; `values`
    are its parameters.
    """

    source: str | None
    cause: str
    values: Mapping[str, programs.Literals]


def grammar(parameters: Mapping[str, programs.Literals]) -> str:
    """GBNF of one call of `solve` with every parameter by name and an integer each.

    Raises:
        UsageError: no parameters, or one that is no integer.
    """
    if not parameters or any(type(value) is not int for value in parameters.values()):
        raise UsageError(
            "the program cannot be adapted by its arguments", expected="solve(name=integer, ...)"
        )
    arguments = ' ", " '.join(f'"{name}=" int' for name in parameters)
    return (
        f'root ::= "{programs.ENTRY}(" {arguments} ")"\nint ::= "-"? ("0" | [1-9] [0-9]? [0-9]? '
        f"[0-9]? [0-9]? [0-9]?)"
    )


def by_arguments(entry: Entry) -> bool:
    """Whether the entry's program has parameters that a grammar can name."""
    found = programs.parameters(entry.program)
    return bool(found) and all(type(value) is int for value in found.values())


def transfer(
    variants: Sequence[Variant],
    bank: Bank,
    answerer: BlockAnswerer,
    router: Router,
    *,
    threshold: float,
    adapt: Adapt = "auto",
    max_tokens: int = MAX_PROGRAM_TOKENS,
    judge: Judge = sandbox.verify,
) -> Iterator[Row]:
    """A row for each variant, in order.

    Raises:
        BankError: an entry without a block of this model. UsageError: `adapt` "arguments" for a
        program without parameters.
    """
    for variant in variants:
        started = time.perf_counter()
        problem = variant.problem
        route = router.route(problem.problem, threshold=threshold)
        detail: dict[str, Any] = {
            "origin": variant.origin,
            "coverage": route.block.coverage if route.block else None,
            "reason": route.reason,
            "expected": dict(variant.values),
        }
        if route.block is None:
            yield _row(variant, started, cause="no-block", detail=detail)
            continue
        entry = bank.get(route.block.name)
        way = adapt if adapt != "auto" else ("arguments" if by_arguments(entry) else "program")
        block = BlockPrefix(bank.library, entry.block(answerer.model_sha256))
        completion = one(answerer, _request(entry, block, problem.problem, way, max_tokens))
        adapted = (
            adapted_by_call(entry.program, completion.text)
            if way == "arguments"
            else adapted_program(completion.text)
        )
        verdict = judge(adapted.source) if adapted.source is not None else None
        answer = verdict.answer if verdict is not None and verdict.verdict == "verified" else None
        right = grade(answer, problem.answer) == "right"
        detail |= {
            "adapt": way,
            "parametric": entry.parametric,
            "values": dict(adapted.values),
            "program_sha256": sha256_of(adapted.source) if adapted.source is not None else None,
            "verdict": verdict.verdict if verdict is not None else None,
            "verdict_cause": verdict.cause if verdict is not None else None,
            "sandbox_level": verdict.execution.level if verdict is not None else None,
            "finish": completion.finish,
            "reuse_seconds": completion.reuse_seconds,
            "prefill_seconds": completion.prefill_seconds,
            "decode_seconds": completion.decode_seconds,
        }
        yield _row(
            variant,
            started,
            cause="answer" if right else classify(entry, variant, adapted, verdict),
            answer=answer,
            block=entry.id,
            cost=completion,
            detail=detail,
        )


def _request(
    entry: Entry, block: BlockPrefix, problem: str, way: Adapt, max_tokens: int
) -> Request:
    """What the model is asked: one call under a grammar, or the whole program.

    Raises:
        UsageError: "arguments", and the program has no parameters that a grammar can name.
    """
    if way == "arguments":
        sampling = Sampling(grammar=grammar(programs.parameters(entry.program)))
        question = ARGUMENTS.format(problem=problem)
        return Request(
            prefix=block, question=question, max_tokens=MAX_ARGUMENT_TOKENS, sampling=sampling
        )
    return Request(
        prefix=block,
        question=PROGRAM.format(problem=problem),
        max_tokens=max_tokens,
        opening="```python\n",
        end="\n```",
    )


def _row(
    variant: Variant,
    started: float,
    *,
    cause: str,
    detail: Mapping[str, Any],
    answer: int | None = None,
    block: str | None = None,
    cost: Completion | None = None,
) -> Row:
    """The graded row of a variant; without a `cost` nothing was asked."""
    problem = variant.problem
    return Row(
        id=problem.id,
        sha256=problem.sha256,
        gold=problem.answer,
        answer=answer,
        grade=grade(answer, problem.answer),
        cause=cause,
        block=block,
        n_attempts=0 if cost is None else 1,
        n_reused=0 if cost is None else cost.n_reused,
        n_prefilled=0 if cost is None else cost.n_prefilled,
        n_out=0 if cost is None else cost.n_out,
        seconds=time.perf_counter() - started,
        detail=dict(detail),
    )


def adapted_by_call(program: str, text: str) -> Adapted:
    """`program` with the arguments of the call that `text` is. The text is parsed, never run."""
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call):
            raise ValueError("not a call")
        values = {
            keyword.arg: ast.literal_eval(keyword.value)
            for keyword in call.keywords
            if keyword.arg is not None
        }
        return Adapted(programs.complete(programs.substitute(program, values)), "program", values)
    except (SyntaxError, ValueError, RecursionError, MemoryError, UsageError):
        return Adapted(None, "cut-off", {})


def adapted_program(text: str) -> Adapted:
    """The program in a response."""
    found = programs.extract(text)
    if found.source is None:
        return Adapted(None, found.reason, {})
    return Adapted(programs.complete(found.source), "program", programs.parameters(found.source))


def classify(
    entry: Entry, variant: Variant, adapted: Adapted, verdict: sandbox.Verdict | None
) -> str:
    """The cause of a failure, by the rule at the top of this module."""
    if entry.sha256 != variant.origin_sha256:
        return "wrong-block"
    if adapted.source is None or verdict is None:
        return "no-program"
    same_logic = _logic(adapted.source) == _logic(entry.program)
    if not entry.parametric and same_logic:
        return "constant-baked-in"
    wrong = any(
        name in variant.values and value != variant.values[name]
        for name, value in adapted.values.items()
    )
    if wrong or not same_logic:
        return "constant-replaced-wrongly"
    if verdict.cause == "timeout":
        return "timeout"
    return "did-not-run" if verdict.verdict == "not-established" else "wrong-number"


def _logic(source: str) -> list[int | float]:
    return [constant.value for constant in programs.constants(source) if constant.place == "logic"]


def by_parametric(rows: Sequence[Row]) -> dict[str, Proportion]:
    """Accuracy where the banked program was parametric, and where numbers of the problem stand in
    its logic.
    """
    split: dict[str, list[Row]] = {"parametric": [], "baked-in": []}
    for row in rows:
        if "parametric" in row.detail:
            split["parametric" if row.detail["parametric"] else "baked-in"].append(row)
    return {
        name: Proportion.of(sum(r.grade == "right" for r in part), len(part))
        for name, part in split.items()
    }
