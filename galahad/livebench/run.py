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

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from galahad.answerer.answerer import BlockPrefix, Request, one
from galahad.errors import SuiteError
from galahad.livebench.records import (
    Answer,
    ArmScore,
    Kind,
    QuestionRow,
    Result,
    RunSettings,
    Said,
    TaskScore,
    is_date,
)
from galahad.livebench.rules import RULES, Question, Task
from galahad.measure.canonical import sha256_of
from galahad.measure.stats import PairedOutcomes, Proportion
from galahad.problems.problem import text_sha256
from taliesin.errors import UsageError
from taliesin.host import records

if TYPE_CHECKING:
    from galahad.answerer.answerer import BlockAnswerer
    from taliesin.store.library import Library


class Split(NamedTuple):
    """`left_out` are newer questions whose template or text is in the library."""

    library: list[Question]
    test: list[Question]
    left_out: list[Question]


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
    row = records.decode(
        line.encode(), QuestionRow, what="the LiveBench question", where=where, error=SuiteError
    )
    return Question(
        id=row.question_id,
        task=row.task,
        template=row.template,
        released=row.released,
        text=row.turns[0],
        gold=row.ground_truth,
    )


def split(questions: Iterable[Question], library_before: str) -> Split:
    """Questions released before the date, the newer ones, and those that may be neither.

    Raises:
        UsageError: not a date.
    """
    if not is_date(library_before):
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


def document(task: Task, examples: Sequence[Question]) -> str:
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
            yield Answer(id=question.id, task=task, library=said[0], without=said[1])


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
    return Said(
        right=right,
        score=score,
        cut=cut,
        n_out=done.n_out,
        seconds=round(time.monotonic() - started, 3),
    )


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


def scores(answers: Sequence[Answer]) -> dict[Task, TaskScore]:
    """The score of each task that has an answer."""
    found: dict[Task, TaskScore] = {}
    for task in sorted({answer.task for answer in answers}):
        own = [answer for answer in answers if answer.task == task]
        found[task] = TaskScore(
            **_score([answer.library for answer in own]),
            without=ArmScore(**_score([answer.without for answer in own])),
            paired=PairedOutcomes.of(
                [a.without.right for a in own], [a.library.right for a in own]
            ),
        )
    return found


def _score(said: Sequence[Said]) -> dict[str, Any]:
    """The fields of an `ArmScore`."""
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

Answers = dict[Kind, list[Answer]]


def result(settings: RunSettings, answers: Answers, n_planned: int) -> Result:
    """What a result file holds: `settings`, and for each kind its scores and answers."""
    transfer, replay = answers["transfer"], answers["replay"]
    return Result(
        settings=settings,
        model=settings.model,
        complete=len(transfer) + len(replay) == n_planned,
        transfer=scores(transfer),
        transfer_answers=tuple(transfer),
        replay=scores(replay),
        replay_answers=tuple(replay),
    )


def resume(path: Path, settings: RunSettings) -> Answers:
    """The answers of an earlier run with the same settings; none where there is no file.

    Raises:
        SuiteError: not a result file; the field is named. UsageError: one with other settings.
    """
    if not path.exists():
        return {"transfer": [], "replay": []}
    hint = "name another file"
    try:
        found = records.read(
            path, Result, what="the result of livebench", error=SuiteError, hint=hint
        )
    except OSError as error:
        raise SuiteError("the result cannot be read", got=error, where=path) from error
    for name in settings.__struct_fields__:
        wanted, there = getattr(settings, name), getattr(found.settings, name)
        if wanted != there:
            raise UsageError(
                f"the result there was made with another {name}",
                expected=wanted,
                got=there,
                where=path,
                hint=hint,
            )
    return {"transfer": list(found.transfer_answers), "replay": list(found.replay_answers)}
