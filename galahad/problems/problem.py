"""A problem: what a model is asked, and the gold that it never sees.

A `Problem` is an id, a text, an integer gold in 0..999 and the SHA-256 of the text. This module
knows nothing of files (`load`), models, prompts or attempts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from galahad.problems.faults import Fault

GOLDS = range(1000)
Gold = Annotated[
    int, Meta(ge=GOLDS.start, lt=GOLDS.stop, description="a right answer, an integer in 0..999")
]


def text_sha256(text: str) -> str:
    """The SHA-256 of a problem's text as UTF-8: its identity in banks and program files, which do
    not hold the text.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Problem:
    """`answer` is the gold, in 0..999; `sha256` is `text_sha256(problem)`."""

    id: str
    problem: str
    answer: int
    sha256: str

    @classmethod
    def of(cls, id: str, problem: str, answer: int) -> Problem:
        return cls(id, problem, answer, text_sha256(problem))

    def as_dict(self) -> dict[str, object]:
        """The fields of our own JSON Lines, in their order."""
        return {
            "id": self.id,
            "problem": self.problem,
            "answer": self.answer,
            "sha256": self.sha256,
        }


@dataclass(frozen=True, slots=True)
class Suite:
    """The problems of one file. `sha256` is that of the file's bytes; `warnings` are the faults
    that do not refuse it.
    """

    name: str
    form: str
    sha256: str
    problems: tuple[Problem, ...]
    warnings: tuple[Fault, ...]
