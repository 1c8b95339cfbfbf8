"""LiveBench files: old questions as a library, newer ones as the test, graded by what each task's prompt asks for.

The split is by release date, with three rules. No id and no text is on both sides. A *template* (an exam, a generator's subtask) is
never split by row: newer questions of a template that the library holds are left out and counted, because they are the old ones in
other words (`updated_amc_12a_2023` is `amc_12a_2023` again). And *replay* (the library's own questions) and *transfer* (newer ones)
are scored apart.

A library block holds several worked examples of one task: question and gold. The control is the same prompt behind a block that
holds the task's name only, so both arms graft. Deliberately does not know how the questions came about; their texts stay in their
files and never enter a result, which holds ids and grades.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from galahad.errors import SuiteError
from galahad.problems import text_sha256
from galahad.stats import PairedOutcomes, Proportion
from taliesin.errors import UsageError

if TYPE_CHECKING:
    from taliesin.engine import Engine
    from taliesin.library import Library

SCHEMA = "galahad.livebench/1"
_DATE = re.compile(r"20\d\d-[01]\d-[0-3]\d")
_FIELDS = ("question_id", "task", "ground_truth", "turns", "livebench_release_date")


@dataclass(frozen=True)
class Question:
    """One row of a question file. `template` is what must not be split; a row of no template is its own."""

    id: str
    task: str
    template: str
    released: str
    text: str
    gold: str


class Split(NamedTuple):
    """`left_out` are newer questions whose template or text is in the library."""

    library: list[Question]
    test: list[Question]
    left_out: list[Question]


class Answer(NamedTuple):
    """One question under both arms. `share` is the part of a list of answers that is right, 0..1."""

    id: str
    task: str
    right: bool
    share: float
    right_without: bool
    share_without: float
    n_out: int
    n_out_without: int


def read(paths: Sequence[Path]) -> list[Question]:
    """The questions of JSON-lines files whose task has a grader here.

    Raises:
        SuiteError: not such a file, a field is missing, an id is there twice, or a task without a grader.
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
                    raise SuiteError("a question id is there twice", got=question.id, where=f"{path}, line {number}")
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
        raise SuiteError("not a LiveBench question", expected=f"the fields {', '.join(missing)}", where=where)
    turns, released = row["turns"], row["livebench_release_date"]
    if not isinstance(turns, list) or len(turns) != 1 or not isinstance(turns[0], str):
        raise SuiteError("a question has one turn", where=where)
    if not isinstance(released, str) or not _DATE.match(released):
        raise SuiteError("a release date is YYYY-MM-DD", got=released, where=where)
    if row["task"] not in GRADERS:
        raise SuiteError("no grader for this task", expected=", ".join(GRADERS), got=row["task"], where=where)
    subtask = row.get("subtask")
    template = (
        f"{row['task']}/{subtask.removeprefix('updated_')}" if isinstance(subtask, str) else str(row["question_id"])
    )
    return Question(str(row["question_id"]), row["task"], template, released[:10], turns[0], str(row["ground_truth"]))


def split(questions: Iterable[Question], library_before: str) -> Split:
    """Questions released before the date, the newer ones, and those that may be neither.

    Raises:
        UsageError: not a date.
    """
    if not _DATE.fullmatch(library_before):
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


# -- grading: what each prompt asks for, and nothing more lenient ------------------------------------------------------


def _words(text: str) -> list[str]:
    return [re.sub(r"\s+", " ", part).strip().lower() for part in text.split(",")]


def _shared(said: str | None, gold: str) -> float:
    """The part of the gold's list that the answer's list has in the same places."""
    if said is None:
        return 0.0
    ours, theirs = _words(said), _words(gold)
    return sum(a == b for a, b in zip(ours, theirs, strict=False)) / len(theirs)


def _last(pattern: str, text: str) -> str | None:
    found = re.findall(pattern, text, re.DOTALL)
    return found[-1] if found else None


def grade_math_comp(response: str, gold: str) -> float:
    """Contest answers: three digits as the last thing said (AIME), or the letter five times in a row (AMC, SMC)."""
    if gold.isdigit():
        return float(_last(r"(?<!\d)(\d{3})(?!\d)", response.strip()[-60:]) == gold)
    letters = [match[1] for match in re.finditer(r"(?<![A-Za-z])([A-Z])\1{4}(?![A-Za-z])", response)]
    return float(bool(letters) and letters[-1] == gold)


def grade_zebra_puzzle(response: str, gold: str) -> float:
    """The list in the last <solution>...</solution>, or in the older questions the words in the last ***...***."""
    said = _last(r"<solution>(.*?)</solution>", response)
    return _shared(said if said is not None else _last(r"\*\*\*([^*]+)\*\*\*", response), gold)


def grade_web_of_lies(response: str, gold: str) -> float:
    """The list of yes and no in the last **bold** words. All of it counts or nothing, as one answer."""
    said = _last(r"\*\*([^*]+)\*\*", response)
    return float(said is not None and _words(said.rstrip(".")) == _words(gold))


GRADERS: dict[str, Callable[[str, str], float]] = {
    "math_comp": grade_math_comp,
    "zebra_puzzle": grade_zebra_puzzle,
    "web_of_lies_v2": grade_web_of_lies,
}


# -- running -----------------------------------------------------------------------------------------------------------


def document(task: str, examples: Sequence[Question]) -> str:
    """The text of a block: worked examples of one task, question and answer."""
    parts = [f"Solved examples of the task {task}."]
    parts += [f"Question:\n{question.text}\n\nAnswer: {question.gold}" for question in examples]
    return "\n\n---\n\n".join(parts)


def sample(questions: Sequence[Question], n: int, seed: int) -> list[Question]:
    """At most `n` of each task; which ones depends on the seed alone."""
    chosen: list[Question] = []
    for task in sorted({question.task for question in questions}):
        own = sorted((q for q in questions if q.task == task), key=lambda q: q.id)
        random.Random(f"{seed} {task}").shuffle(own)
        chosen += own[:n]
    return chosen


def ask(
    engine: Engine, library: Library, examples: Sequence[Question], questions: Sequence[Question], n_predict: int
) -> Iterator[Answer]:
    """Each question behind the block of its task's examples, and behind a block without examples.

    Raises:
        UsageError: a task without an example.
    """
    for task in sorted({question.task for question in questions}):
        own = [example for example in examples if example.task == task]
        if not own:
            raise UsageError("no library question of this task", got=task, hint="an earlier file, or a later date")
        names = []
        for kind, text in (("library", document(task, own)), ("without", document(task, []))):
            names.append(
                engine.save(library, text, f"{task}-{kind}", align="whole", replace_existing=True)[0].info.name
            )
        for question in (q for q in questions if q.task == task):
            said = [_response(engine, library, str(name), question.text, n_predict) for name in names]
            share, other = (GRADERS[task](text, question.gold) for text, _ in said)
            yield Answer(question.id, task, share == 1.0, share, other == 1.0, other, said[0][1], said[1][1])


def _response(engine: Engine, library: Library, name: str, text: str, n_predict: int) -> tuple[str, int]:
    n_query = len(engine.model.tokenize(text, special=False))
    with library.open(name) as block:
        grafted = engine.graft(block, library=library, n_extra=n_query + n_predict + 256)
        steps = list(grafted.generate(text, n_predict))
    return "".join(step.text for step in steps), sum(step.token >= 0 for step in steps)


def scores(answers: Sequence[Answer]) -> dict[str, Any]:
    """Task -> right, n and share with the library, the same without it, and the paired test between the two."""
    found = {}
    for task in sorted({answer.task for answer in answers}):
        own = [answer for answer in answers if answer.task == task]
        n = len(own)
        found[task] = {
            **Proportion.of(sum(a.right for a in own), n)._asdict(),
            "right": sum(a.right for a in own),
            "mean_share": sum(a.share for a in own) / n,
            "n_out": sum(a.n_out for a in own),
            "without": {
                **Proportion.of(sum(a.right_without for a in own), n)._asdict(),
                "right": sum(a.right_without for a in own),
                "mean_share": sum(a.share_without for a in own) / n,
                "n_out": sum(a.n_out_without for a in own),
            },
            "paired": PairedOutcomes.of([a.right_without for a in own], [a.right for a in own])._asdict(),
        }
    return found
