"""The records of a LiveBench run: a line of a question file, and the result, which is also what a
stopped run goes on from.

A result holds ids, grades, tokens, seconds and hashes, and no text of a question or an answer.
Deliberately does not know: how an answer is graded (`rules`), nor how the questions are asked
(`run`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any, Literal

from msgspec import Meta

from galahad.livebench.rules import Task
from galahad.measure.energy import Seconds
from galahad.measure.stats import PairedOutcomes, Proportion
from taliesin.host import findings
from taliesin.host.findings import Fraction
from taliesin.host.kinds import Count, Digest
from taliesin.host.records import Record

Kind = Literal["transfer", "replay"]
Text = Annotated[str, Meta(pattern=r"\S", description="a text that is not empty")]

_DATE = re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}")


def is_date(text: str) -> bool:
    """Whether the text is a day, YYYY-MM-DD, that the calendar has."""
    try:
        return bool(_DATE.fullmatch(text) and date.fromisoformat(text))
    except ValueError:
        return False


class QuestionRow(Record, forbid_unknown_fields=False):
    """A line of a question file; what else it holds is LiveBench's and not read. `subtask`, where
    it is a text, names the template.
    """

    SCHEMA = "galahad.livebench.question/1"
    question_id: Text
    task: Task
    ground_truth: Text
    turns: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=1, description="one turn")]
    livebench_release_date: str
    subtask: Any = None

    def __post_init__(self) -> None:
        if not is_date(self.released):
            raise ValueError("a release date YYYY-MM-DD")

    @property
    def released(self) -> str:
        return self.livebench_release_date[:10]

    @property
    def template(self) -> str:
        """What must not be split; a row of no template is its own."""
        if isinstance(self.subtask, str):
            return f"{self.task}/{self.subtask.removeprefix('updated_')}"
        return self.question_id


class Said(Record):
    """One arm's answer.

    right: in the form that the prompt asks for, and all of it. score: what LiveBench's scorer
    gives; it accepts more forms, and parts of a list. cut: the token limit ended it.
    """

    right: bool
    score: Fraction
    cut: bool
    n_out: Count
    seconds: Seconds


class Answer(Record):
    """One question under both arms: behind the block of examples, and behind the one without."""

    id: str
    task: Task
    library: Said
    without: Said


class ArmScore(Proportion):
    """The share that is right; the rest are sums, and the mean of the scores."""

    right: Count
    mean_score: Fraction
    cut: Count
    n_out: Count
    seconds: Seconds


class TaskScore(ArmScore):
    """A task's score with the library, the same without it, and the paired test between the two."""

    without: ArmScore
    paired: PairedOutcomes


class RunSettings(Record, kw_only=True, omit_defaults=True):
    """Everything that decides the answers: the answerer (`Answerer.identity`), the split, what was
    sampled, and the hashes of the questions and of each task's block.
    """

    engine: str
    model: str
    model_sha256: str | None = None
    n_ctx: Count | None = None
    library_before: str
    n_library: Count
    n_test: Count
    n_left_out: Count
    seed: int
    examples: Count
    tokens: Count
    questions_sha256: Digest
    documents_sha256: dict[Task, Digest]


class Result(findings.Result, kw_only=True):
    """A run: for each kind its scores by task and its answers. `complete`: none is left."""

    SCHEMA = "galahad.livebench/2"
    schema: Literal["galahad.livebench/2"] = "galahad.livebench/2"
    settings: RunSettings
    model: str
    complete: bool
    transfer: dict[Task, TaskScore]
    transfer_answers: tuple[Answer, ...]
    replay: dict[Task, TaskScore]
    replay_answers: tuple[Answer, ...]

    def findings(self, file: str) -> Iterator[findings.Finding]:
        for kind, scores in (("transfer", self.transfer), ("replay", self.replay)):
            for task, score in scores.items():
                without = score.without
                yield findings.Line(
                    "C19",
                    {
                        "model": self.model,
                        "score": f"{kind}, {task}"
                        + ("" if self.complete else " (run not complete)"),
                        "with the library": score.short,
                        "without": without.short,
                        "McNemar p": f"{score.paired.p:.3g}",
                        "LiveBench's score": f"{score.mean_score:.1%}, without "
                        f"{without.mean_score:.1%}",
                        "tokens, at most": self.settings.tokens,
                        "cut off": f"{score.cut}, without {without.cut}",
                    },
                )

    def __post_init__(self) -> None:
        for answers in (self.transfer_answers, self.replay_answers):
            if len({answer.id for answer in answers}) < len(answers):
                raise ValueError("each question answered once")
