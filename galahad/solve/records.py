"""The records of a run's files: the lines of `run.jsonl` and of `transcripts.jsonl`.

A line of `run.jsonl` is one of `RunHeader`, `Session` and `Attempt`, told apart by its `kind`; none
has a text of a problem or of a model. `chain` is written and checked by `galahad.solve.log`.
Deliberately does not know: what follows from the records (`galahad.solve.summary`).
"""

from __future__ import annotations

from typing import Any, Literal

from galahad.answerer.answerer import SavedPrefix
from galahad.measure.arm import Grade
from galahad.measure.energy import Reading, Seconds
from galahad.measure.engine import EngineRecord
from galahad.problems.problem import Gold
from galahad.solve.prompts import Pass
from galahad.solve.router import Route
from galahad.solve.solver import (
    Confidence,
    Count,
    PassRecord,
    PassText,
    RouteRecord,
    Settings,
)
from taliesin.host.records import Record


class SuiteRecord(Record):
    """Which problems: `name` without folders, the hash of the file, and the hash of each text by
    problem id.
    """

    name: str
    sha256: str
    problems: dict[str, str]


class RunHeader(Record, tag_field="kind", tag="run"):
    """The first line: what makes this run this run. Everything but `created` must be equal to go on
    with it.
    """

    SCHEMA = "galahad.run/1"
    created: str
    version: str
    suite: SuiteRecord
    engine: EngineRecord
    settings: Settings
    graft: bool
    prompts_sha256: str
    router: str
    rule: str
    schema: Literal["galahad.run/1"] = "galahad.run/1"
    chain: str = ""


class SandboxRecord(Record):
    """How programs are isolated on the machine of a session."""

    level: str
    mechanisms: list[str]


class Session(Record, tag_field="kind", tag="session"):
    """A process that worked on the run. `engine` are the answerer's facts about its machine and
    build, `prefixes` the shared prefixes that it saved as blocks.
    """

    SCHEMA = "galahad.run.session/1"
    started: str
    python: str
    system: str
    cpu: str
    engine: dict[str, Any]
    prefixes: dict[str, SavedPrefix]
    sandbox: SandboxRecord
    energy: str
    chain: str = ""


class Attempt(Record, tag_field="kind", tag="attempt"):
    """One finished attempt at a problem, numbered from 0. The router's words are counted, not
    quoted; `order` is the order that it chose.
    """

    SCHEMA = "galahad.run.attempt/1"
    problem: str
    attempt: Count
    problem_sha256: str
    answer: int | None
    confidence: Confidence
    doubts: tuple[str, ...]
    order: tuple[Route, ...]
    figure_words: Count
    count_words: Count
    routes: tuple[RouteRecord, ...]
    passes: tuple[PassRecord, ...]
    tokens_in: Count
    tokens_out: Count
    seconds: Seconds
    gold: Gold
    grade: Grade
    energy: Reading
    finished: str
    transcript_sha256: str = ""
    chain: str = ""

    @property
    def key(self) -> Key:
        return self.problem, self.attempt


class Transcript(Record):
    """A line of `transcripts.jsonl`: what was asked and said in each pass, and the program that was
    run. An attempt names its transcript by the hash of this record.
    """

    SCHEMA = "galahad.run.transcript/1"
    problem: str
    attempt: Count
    passes: dict[Pass, PassText]
    program: str | None

    @property
    def key(self) -> Key:
        return self.problem, self.attempt


Key = tuple[str, int]
"""An attempt: problem id, number of the attempt (from 0)."""
