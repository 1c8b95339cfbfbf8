"""LiveBench files: old questions as a library, newer ones as the test, graded by each task's own
rule (`livebench_rules`).

The split is by release date, with three rules. No id and no text is on both sides. A *template* (an
exam, a generator's subtask) is
never split by row: newer questions of a template that the library holds are left out and counted,
because they are the old ones in other words (`updated_amc_12a_2023` is `amc_12a_2023` again). And
*replay* (the library's own questions) and *transfer* (newer ones) are scored apart.

A library block holds several worked examples of one task: question and gold. The control is the
same prompt behind a block that holds the task's name only, so both arms graft. Deliberately does
not know how the questions came about, nor what answers them; their texts stay in their files and
never enter a result, which holds ids, grades, tokens, seconds and hashes.
"""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from galahad.answerer.answerer import BlockPrefix, Request, one
from galahad.errors import SuiteError
from galahad.livebench.rules import RULES, Question
from galahad.measure.canonical import sha256_of
from galahad.measure.stats import PairedOutcomes, Proportion
from galahad.problems.problem import text_sha256
from taliesin.errors import UsageError
from taliesin.host import records

if TYPE_CHECKING:
    from galahad.answerer.answerer import BlockAnswerer
    from taliesin.store.library import Library

SCHEMA = "galahad.livebench/2"
_DATE = re.compile(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}")
_FIELDS = ("question_id", "task", "ground_truth", "turns", "livebench_release_date")


class Split(NamedTuple):
    """`left_out` are newer questions whose template or text is in the library."""

    library: list[Question]
    test: list[Question]
    left_out: list[Question]


class Said(NamedTuple):
    """One arm's answer.

    right: in the form that the prompt asks for, and all of it. score: what LiveBench's scorer
    gives, 0..1; it accepts more forms,
    and parts of a list. cut: the token limit ended it.
    """

    right: bool
    score: float
    cut: bool
    n_out: int
    seconds: float


class Answer(NamedTuple):
    """One question under both arms: behind the block of examples, and behind the one without."""

    id: str
    task: str
    library: Said
    without: Said

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Answer:
        """Raises KeyError, TypeError, ValueError: not what `record` gives."""
        found = cls(
            record["id"], record["task"], Said(**record["library"]), Said(**record["without"])
        )
        if not isinstance(found.id, str) or found.task not in RULES:
            raise ValueError("an answer without an id or a task")
        for said in (found.library, found.without):
            if (
                not (isinstance(said.right, bool) and isinstance(said.cut, bool))
                or type(said.n_out) is not int
            ):
                raise TypeError(f"the answer to {found.id} is malformed")
            if not 0 <= said.score <= 1 or not 0 <= said.seconds < math.inf:
                raise ValueError(f"the answer to {found.id} has a figure out of range")
        return found

    def record(self) -> dict[str, Any]:
        """JSON-ready."""
        arms = {"library": self.library._asdict(), "without": self.without._asdict()}
        return {"id": self.id, "task": self.task, **arms}


def read(paths: Sequence[Path]) -> list[Question]:
    """The questions of JSON-lines files whose task has a grader here.

    Raises:
        SuiteError: not such a file, a field is missing, or is no text, an id is there twice, or a
            task without a grader.
    """
    found: dict[str, Question] = {}
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SuiteError("the question file cannot be read", got=error, where=path) from error
        for number, line in enumerate(lines, 1):
            if line.strip():
                question = _question(line, f"{path}, line {number}")
                if question.id in found:
                    raise SuiteError(
                        "a question id is there twice",
                        got=question.id,
                        where=f"{path}, line {number}",
                    )
                found[question.id] = question
    if not found:
        raise SuiteError("no question", where=", ".join(map(str, paths)))
    return list(found.values())


def _question(line: str, where: str) -> Question:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SuiteError("not JSON lines", got=error, where=where) from error
    missing = [name for name in _FIELDS if not isinstance(row, dict) or name not in row]
    if missing:
        raise SuiteError(
            "not a LiveBench question", expected=f"the fields {', '.join(missing)}", where=where
        )
    turns, released = row["turns"], row["livebench_release_date"]
    if not isinstance(turns, list) or len(turns) != 1 or not isinstance(turns[0], str):
        raise SuiteError("a question has one turn", where=where)
    if not isinstance(released, str) or not _is_date(released[:10]):
        raise SuiteError("a release date is YYYY-MM-DD", got=repr(released), where=where)
    texts = {
        "question_id": row["question_id"],
        "ground_truth": row["ground_truth"],
        "turns": turns[0],
    }
    for name, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise SuiteError(f"{name} is no text", got=repr(text), where=where)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise SuiteError(
                f"{name} has half a surrogate pair, which is no character", where=where
            )
    if not isinstance(row["task"], str) or row["task"] not in RULES:
        raise SuiteError(
            "no grader for this task", expected=", ".join(RULES), got=row["task"], where=where
        )
    subtask = row.get("subtask")
    template = (
        f"{row['task']}/{subtask.removeprefix('updated_')}"
        if isinstance(subtask, str)
        else row["question_id"]
    )
    return Question(
        row["question_id"], row["task"], template, released[:10], turns[0], row["ground_truth"]
    )


def _is_date(text: str) -> bool:
    try:
        return bool(_DATE.fullmatch(text) and date.fromisoformat(text))
    except ValueError:  # a day that no calendar has
        return False


def split(questions: Iterable[Question], library_before: str) -> Split:
    """Questions released before the date, the newer ones, and those that may be neither.

    Raises:
        UsageError: not a date.
    """
    if not _is_date(library_before):
        raise UsageError("not a date", expected="YYYY-MM-DD", got=library_before)
    everything = list(questions)
    library = [question for question in everything if question.released < library_before]
    templates = {question.template for question in library}
    texts = {text_sha256(question.text) for question in library}
    test: list[Question] = []
    left_out: list[Question] = []
    for question in everything:
        if question.released >= library_before:
            known = question.template in templates or text_sha256(question.text) in texts
            (left_out if known else test).append(question)
    assert {q.id for q in library}.isdisjoint(q.id for q in test)
    return Split(library, test, left_out)


# -- running ---------------------------------------------------------------------------------------


def document(task: str, examples: Sequence[Question]) -> str:
    """The text of a block: worked examples of one task, question and answer."""
    parts = [f"Solved examples of the task {task}."]
    parts += [
        f"Question:\n{question.text}\n\nAnswer: {RULES[task].form(question.gold)}"
        for question in examples
    ]
    return "\n\n---\n\n".join(parts)


def sample(questions: Sequence[Question], n: int, seed: int) -> list[Question]:
    """At most `n` of each task; which ones depends on the seed alone, and a larger sample holds a
    smaller one.
    """
    chosen: list[Question] = []
    for task in sorted({question.task for question in questions}):
        own = sorted((q for q in questions if q.task == task), key=lambda q: q.id)
        random.Random(f"{seed} {task}").shuffle(own)
        chosen += own[:n]
    return chosen


def ask(
    reader: BlockAnswerer,
    library: Library,
    examples: Sequence[Question],
    questions: Sequence[Question],
    max_tokens: int,
) -> Iterator[Answer]:
    """Each question behind the block of its task's examples, and behind a block without examples;
    greedy.

    Raises:
        UsageError: a task without an example. ContextFull: a question that does not fit.
    """
    for task in sorted({question.task for question in questions}):
        own = [example for example in examples if example.task == task]
        if not own:
            raise UsageError(
                "no library question of this task",
                got=task,
                hint="an earlier file, or a later date",
            )
        reader.save(library, f"{task}-library", document(task, own), task)
        reader.save(library, f"{task}-without", document(task, []), task)
        for question in (q for q in questions if q.task == task):
            said = [
                _said(reader, library, f"{task}-{arm}", question, max_tokens)
                for arm in ("library", "without")
            ]
            yield Answer(question.id, task, *said)


def _said(
    reader: BlockAnswerer, library: Library, block: str, question: Question, max_tokens: int
) -> Said:
    started = time.monotonic()
    request = Request(
        prefix=BlockPrefix(library, block), question=question.text, max_tokens=max_tokens
    )
    done = one(reader, request)
    cut = done.finish == "length"
    rule = RULES[question.task]
    right, score = rule.asked(done.text, question.gold, cut), rule.published(done.text, question)
    return Said(right, score, cut, done.n_out, round(time.monotonic() - started, 3))


def documents_sha256(examples: Sequence[Question]) -> dict[str, str]:
    """Task -> the SHA-256 of its block's text: which examples in which form, without saying
    them.
    """
    tasks = sorted({example.task for example in examples})
    return {
        task: text_sha256(document(task, [e for e in examples if e.task == task])) for task in tasks
    }


def questions_sha256(questions: Iterable[Question]) -> str:
    """Pins ids, texts and golds, in whatever order and files."""
    return sha256_of(sorted([q.id, text_sha256(q.text), q.gold] for q in questions))


def scores(answers: Sequence[Answer]) -> dict[str, Any]:
    """Task -> right, n and mean score with the library, the same without it, and the paired test
    between the two.
    """
    found = {}
    for task in sorted({answer.task for answer in answers}):
        own = [answer for answer in answers if answer.task == task]
        found[task] = {
            **_score([answer.library for answer in own]),
            "without": _score([answer.without for answer in own]),
            "paired": records.plain(
                PairedOutcomes.of([a.without.right for a in own], [a.library.right for a in own])
            ),
        }
    return found


def _score(said: Sequence[Said]) -> dict[str, Any]:
    """`low` and `high`: Wilson, 95 %."""
    right, n = sum(one.right for one in said), len(said)
    return {
        **records.plain(Proportion.of(right, n)),
        "right": right,
        "mean_score": sum(one.score for one in said) / n,
        "cut": sum(one.cut for one in said),
        "n_out": sum(one.n_out for one in said),
        "seconds": round(sum(one.seconds for one in said), 3),
    }


# -- a result file ---------------------------------------------------------------------------------

Answers = dict[str, list[Answer]]
"""Kind (transfer, replay) -> its answers."""


def result(settings: dict[str, Any], answers: Answers, n_planned: int) -> dict[str, Any]:
    """What a result file holds: `settings`, and for each kind its scores and answers."""
    fields: dict[str, Any] = {"schema": SCHEMA, "settings": settings, "model": settings["model"]}
    fields["complete"] = sum(map(len, answers.values())) == n_planned
    for kind, own in answers.items():
        fields |= {kind: scores(own), f"{kind}_answers": [answer.record() for answer in own]}
    return fields


def resume(path: Path, settings: dict[str, Any], kinds: Iterable[str]) -> Answers:
    """The answers of an earlier run with the same settings; none where there is no file.

    Raises:
        SuiteError: not a result file. UsageError: one with other settings.
    """
    if not path.exists():
        return {kind: [] for kind in kinds}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["schema"] != SCHEMA:
            raise ValueError(f"{found['schema']} is not {SCHEMA}; name another file")
        there: dict[str, Any] = {**found["settings"]}
        answers = {
            kind: [Answer.from_record(one) for one in found[f"{kind}_answers"]] for kind in kinds
        }
        if any(len({one.id for one in own}) < len(own) for own in answers.values()):
            raise ValueError("an answer is there twice")
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise SuiteError(
            "not a result of livebench", got=f"{type(error).__name__}: {error}", where=path
        ) from error
    if differing := [name for name in settings if settings[name] != there.get(name)]:
        name = differing[0]
        raise UsageError(
            f"the result there was made with another {name}",
            expected=settings[name],
            got=there.get(name),
            where=path,
            hint="name another file",
        )
    return answers
