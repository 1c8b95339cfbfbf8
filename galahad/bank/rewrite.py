"""How parametric the bank's programs are, and a model asked to make one more so.

A program with a number of its problem inside the logic recalls well and transfers badly. A rewrite
enters the bank only if the sandbox verified that it prints the same answer and the check finds
nothing left in its logic.
"""

from __future__ import annotations

from typing import NamedTuple

from galahad import sandbox
from galahad.answerer.answerer import Answerer, Request, one
from galahad.bank.entry import Entry, Verify
from galahad.responses import program as programs

_QUESTION = """\
Rewrite a Python program so that it can be given other numbers. Rules:
- Define solve with every number of the problem as a parameter that has that number as its default value.
- No number of the problem may stand inside the body of solve: use the parameters, and compute from them what was computed by hand.
- It must print the same answer as before, and end with print(solve()).
- Answer with one Python code block and nothing else.

Problem:
{problem}

Program:
```python
{program}
```

What stands inside its logic:
{findings}"""


class Rewrite(NamedTuple):
    """`program` is None where the model's rewrite was not good enough; `reason` says why."""

    program: str | None
    reason: str
    n_out: int


def rewrite(
    entry: Entry, answerer: Answerer, *, max_tokens: int = 900, verify: Verify = sandbox.verify
) -> Rewrite:
    """Ask the model for a `solve(param=...)` form of the entry's program, and try it."""
    request = Request(
        question=_QUESTION.format(
            problem=entry.problem,
            program=entry.program.strip(),
            findings="\n".join(f"- {finding}" for finding in entry.findings),
        ),
        max_tokens=max_tokens,
        opening="```python\n",
        end="\n```",
    )
    completion = one(answerer, request)
    found = programs.extract(completion.text)
    if found.source is None:
        return Rewrite(None, found.reason, completion.n_out)
    source = programs.complete(found.source)
    check = programs.check(source, entry.problem)
    if not check.parametric:
        return Rewrite(
            None, "still not parametric: " + "; ".join(check.explain()), completion.n_out
        )
    verdict = verify(source, entry.answer)
    if verdict.verdict != "verified":
        return Rewrite(
            None, f"{verdict.verdict}, {verdict.cause}: {verdict.detail}", completion.n_out
        )
    return Rewrite(source, "same answer, nothing baked in", completion.n_out)
