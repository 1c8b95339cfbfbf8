"""What a model is asked in each pass of an attempt.

A run notes the hash of all of it (`prompts_sha256`), so a changed word makes another run.
Deliberately does not know: who asks, and what an answer means.
"""

from __future__ import annotations

import hashlib
from typing import Literal

Pass = Literal["thought", "check", "program"]

_MAX_QUOTED = 6000  # characters of a proposed solution that the check is shown, its end

PASSES: tuple[Pass, ...] = ("thought", "check", "program")

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
OPENING: dict[Pass, str] = {"thought": "", "check": "", "program": "```python\n"}
END: dict[Pass, str] = {"thought": "", "check": "", "program": "\n```"}


def prompts_sha256() -> str:
    """The SHA-256 of everything that is said to a model."""
    parts = [*PREFIXES.items(), *OPENING.items(), *END.items(), check_question("P", "S")]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def check_question(problem: str, solution: str) -> str:
    """What the check is asked: the problem, and the solution that may be wrong."""
    return f"{problem}\n\nProposed solution:\n{solution[-_MAX_QUOTED:]}\n\nEnd of the proposed solution."
