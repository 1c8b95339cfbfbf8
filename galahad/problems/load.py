"""Problem files: loaded, examined, mended, compared.

`load` reads
any of the forms of `galahad.problems.rows` under the field names that public copies use, and
refuses a file with errors; `examine` is the doctor behind it, which names every fault; `repair`
mends what is certain and says what it did; `compare` finds, against a clean copy,
the faults that no file shows by itself: a changed number, a wrong angle, a wrong gold.

Fields such as `solution` and `reference_solution` are never read: nothing of them can reach a model
or become a gold. This module knows nothing of models, prompts or attempts.
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from galahad.errors import SuiteError
from galahad.problems import faults, rows, templates
from galahad.problems.faults import Fault
from galahad.problems.problem import GOLDS, Problem, Suite, text_sha256
from galahad.responses import integer as answers
from taliesin.host import durable

# In order of preference. A dot goes into a nested record, or is part of a CSV column's name.
_TEXT_FIELDS = ("problem", "Problem", "question", "Question", "input", "prompt", "turns")
_GOLD_FIELDS = (
    "answer",
    "Answer",
    "target",
    "expected_answer",
    "ground_truth",
    "reward_model.ground_truth",
)
_ID_FIELDS = ("id", "ID", "problem_idx", "question_id", "idx", "metadata.ID", "extra_info.index")
_OWN_FIELDS = {"id", "problem", "answer", "sha256"}
_MAX_ID = 200
# Similarity of every row with every row is quadratic.
_MAX_COMPARED = 3000
_ALIKE = 0.6


@dataclass(slots=True)
class Candidate:
    """A row on its way to a problem; `text` and `gold` are None where the row has none that can be
    used.
    """

    row: int
    id: str
    text: str | None
    gold: int | None
    raw_gold: object = None
    faults: list[Fault] = field(default_factory=list)

    def add(self, kind: str, detail: str, repairable: bool = False) -> None:
        self.faults.append(Fault(self.row, self.id, kind, detail, repairable))


@dataclass(frozen=True, slots=True)
class Examination:
    """What the doctor found: every row as a candidate, and all faults, those of the file (row 0)
    first.
    """

    name: str
    form: str
    sha256: str
    candidates: tuple[Candidate, ...]
    faults: tuple[Fault, ...]

    @property
    def errors(self) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if fault.severity == "error")


def load(path: Path) -> Suite:
    """The problems of a file, or of a folder of templates (`galahad.problems.templates`), `-` being
    stdin.

    Raises:
        SuiteError: not a problem file, or one with errors; the message names the first of them.
    """
    if path.is_dir():
        return templates.suite(path)
    found = examine(path)
    if found.errors:
        first = [f"row {f.row} ({f.id}): {f.kind}, {f.detail}" for f in found.errors[:3]]
        more = f" and {len(found.errors) - 3} more" if len(found.errors) > 3 else ""
        raise SuiteError(
            f"{len(found.errors)} error(s) in {path}",
            got="; ".join(first) + more,
            where=path,
            hint="`galahad data check FILE` lists all; "
            "with `--repair --out NEW` it writes what can be mended",
        )
    problems = tuple(
        Problem.of(c.id, c.text, c.gold)
        for c in found.candidates
        if c.text is not None and c.gold is not None
    )
    return Suite(found.name, found.form, found.sha256, problems, found.faults)


# --- from rows to candidates ---


def examine(path: Path) -> Examination:
    """Every fault of a problem file.

    Raises:
        SuiteError: not a problem file at all.
    """
    table = rows.read(path)
    readable = [row.fields for row in table.rows if row.fields is not None]
    if not any(_first(fields, _TEXT_FIELDS) is not None for fields in readable):
        raise SuiteError(
            "no row has a problem field",
            expected=" | ".join(_TEXT_FIELDS),
            got=ascii(
                sorted({str(name)[:40] for fields in readable[:100] for name in fields})[:20]
            ),
            where=path,
        )
    has_ids = any(_first(fields, _ID_FIELDS) is not None for fields in readable)
    candidates = tuple(_candidate(row, has_ids) for row in table.rows)
    _find_duplicates(candidates)
    of_file = [Fault(0, "", mark, faults.KINDS[mark][1], True) for mark in table.marks]
    of_file += _promised(path, len(candidates))
    found = [*of_file, *(fault for candidate in candidates for fault in candidate.faults)]
    return Examination(table.name, table.form, table.sha256, candidates, tuple(found))


def _get(fields: Mapping[str, Any], name: str) -> Any:
    """The value of a field, of `a.b` inside a nested record, or None."""
    if name in fields:
        return fields[name]
    outer, _, inner = name.partition(".")
    nested = fields.get(outer)
    return nested.get(inner) if inner and isinstance(nested, dict) else None


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((value for name in names if (value := _get(fields, name)) is not None), None)


def _candidate(row: rows.Row, has_ids: bool) -> Candidate:
    candidate = Candidate(row.number, str(row.number), None, None)
    fields = row.fields
    if fields is None:
        candidate.add("unreadable-row", row.trouble or "")
        return candidate
    _read_id(candidate, fields, has_ids)
    if row.repeated:
        candidate.add("repeated-field", ascii(row.repeated)[1:-1].rstrip(","))
    candidate.text = _read_text(candidate, fields)
    candidate.gold = _read_gold(candidate, fields)
    if candidate.text is None:
        return candidate
    for finding in faults.find(candidate.text, candidate.gold):
        candidate.add(*finding)
    stored = fields.get("sha256")
    if set(fields) == _OWN_FIELDS and stored != text_sha256(candidate.text):
        candidate.add("hash-mismatch", f"stored {str(stored)[:16]}")
    return candidate


def _read_id(candidate: Candidate, fields: Mapping[str, Any], has_ids: bool) -> None:
    value = _first(fields, _ID_FIELDS)
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        text = (
            value.strip() if isinstance(value, str) else (str(value) if abs(value) < 10**18 else "")
        )
        if text and len(text) <= _MAX_ID and text.isprintable():
            candidate.id = text
            return
        candidate.add("bad-id", ascii(text[:40]))
    elif value is not None:
        candidate.add("bad-id", type(value).__name__)
    elif has_ids:
        candidate.add("missing-id", f"the row's number {candidate.row} stands for it", True)


def _read_text(candidate: Candidate, fields: Mapping[str, Any]) -> str | None:
    texts = []
    for name in _TEXT_FIELDS:
        value = _get(fields, name)
        if isinstance(value, list):
            value = _single_turn(candidate, name, value)
        if isinstance(value, str):
            texts.append((name, value.replace("\r\n", "\n").strip(" \n")))
        elif value is not None:
            candidate.add("missing-text", f"{name} is a {type(value).__name__}, not a text")
    if not texts:
        if not candidate.faults or candidate.faults[-1].kind not in (
            "conversation",
            "missing-text",
        ):
            candidate.add("missing-text", f"none of {', '.join(_TEXT_FIELDS)}")
        return None
    (first, text), *others = texts
    for name, other in others:
        if _collapsed(other) != _collapsed(text):
            candidate.add("texts-disagree", f"{name} differs from {first}", True)
    return text


def _single_turn(candidate: Candidate, name: str, value: list[Any]) -> str | None:
    """The one user turn of a chat (`[{role, content}]`) or of a list of texts; None, with a fault,
    for anything else.
    """
    if len(value) == 1 and isinstance(value[0], str):
        return value[0]
    messages = [message for message in value if isinstance(message, dict)]
    roles = [str(message.get("role")) for message in messages]
    users = [message.get("content") for message in messages if message.get("role") == "user"]
    if (
        len(messages) == len(value)
        and len(users) == 1
        and isinstance(users[0], str)
        and set(roles) <= {"user", "system"}
    ):
        if "system" in roles:
            candidate.add("instruction", f"{name} holds a system message; it is left out", True)
        return users[0]
    candidate.add("conversation", f"{name} holds {ascii(roles[:8]) if roles else len(value)}")
    return None


def _read_gold(candidate: Candidate, fields: Mapping[str, Any]) -> int | None:
    values = [
        (name, value) for name in _GOLD_FIELDS if (value := _get(fields, name)) not in (None, "")
    ]
    if not values:
        candidate.add("missing-gold", f"none of {', '.join(_GOLD_FIELDS)}")
        return None
    candidate.raw_gold = values[0][1]
    golds = [(name, _gold(value)) for name, value in values]
    if (
        len(
            {
                gold if isinstance(gold, int) else str(value)
                for (_, gold), (_, value) in zip(golds, values, strict=True)
            }
        )
        > 1
    ):
        candidate.add(
            "golds-disagree", ", ".join(f"{name} {str(value)[:20]!r}" for name, value in values)
        )
        return None
    gold = golds[0][1]
    if isinstance(gold, int):
        if gold in GOLDS:
            return gold
        candidate.add("gold-out-of-range", str(gold))
    else:
        candidate.add(gold, ascii(str(values[0][1])[:40]), _mended_gold(values[0][1]) is not None)
    return None


def _gold(value: object) -> int | str:
    """The integer that a gold is, or the kind of its fault."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return "gold-not-an-integer"
    if isinstance(value, float) or (
        isinstance(value, str) and re.fullmatch(r"\s*-?\d+\.\d*\s*", value)
    ):
        return "gold-with-fraction"
    if isinstance(value, int):
        return value if abs(value) < 10**18 else "gold-not-an-integer"
    number = answers.integer(value)
    return "gold-not-an-integer" if number is None else number


def _mended_gold(value: object) -> int | None:
    """The gold inside markup (`$25$`, `\\boxed{025}`) under the rule for answers; a fraction stays
    refused.
    """
    if not isinstance(value, str) or "." in value:
        return None
    text = value if "boxed" in value else f"\\boxed{{{value}}}"
    number = answers.extract(text).value
    return number if number in GOLDS else None


def _final_gold(candidate: Candidate) -> int | None:
    return candidate.gold if candidate.gold is not None else _mended_gold(candidate.raw_gold)


def _collapsed(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def _find_duplicates(candidates: Iterable[Candidate]) -> None:
    ids: dict[str, Candidate] = {}
    texts: dict[str, Candidate] = {}
    for candidate in candidates:
        if candidate.text is None:
            continue
        # By what the rows are once mended: a damaged copy of a row is a copy.
        first = texts.setdefault(_collapsed(faults.repair(candidate.text, None)[0]), candidate)
        same = first is not candidate and _final_gold(first) == _final_gold(candidate)
        if first is not candidate:
            kind = "duplicate-text" if same else "conflicting-duplicate"
            candidate.add(kind, f"row {first.row} ({first.id})", same)
            if not same:
                first.add(kind, f"row {candidate.row} ({candidate.id})")
        named = ids.setdefault(candidate.id, candidate)
        if named is not candidate:
            candidate.add("duplicate-id", f"row {named.row}", same and named is first)


_RANGE = re.compile(r"(?:19|20)\d\d\D{1,3}(?:19|20)?\d\d")
_YEAR = re.compile(r"aime[-_ ]?(?:20)?\d\d(?!\d)")
_PART = re.compile(r"(?:^|[^a-z])(?:i{1,2}|part[-_ ]?[12]|[12])(?:[^a-z0-9]|$)")


def _promised(path: Path, count: int) -> list[Fault]:
    """Whether the file has as many rows as its name, or its folder's, promises. An AIME is 15
    problems, a year's two are 30.
    """
    names = f"{path.parent.name}/{path.stem}".lower()
    year = None if _RANGE.search(names) else _YEAR.search(names)
    _, aime, rest = names.partition("aime")
    promised = 15 if aime and _PART.search(rest) else 30
    if count == 15 and promised == 30:
        return [
            Fault(
                0,
                "",
                "half-set",
                f"15 rows; {year[0]} has 30" if year else "15 rows: one of a year's two AIMEs?",
            )
        ]
    if year is not None and count < promised:
        return [Fault(0, "", "incomplete-set", f"{count} rows; {year[0]} has {promised}")]
    return []


# --- repair ---


class Repair(NamedTuple):
    """`problems` are all rows without an error after the repair; `done` one line a repair; `left`
    what still stands.
    """

    problems: tuple[Problem, ...]
    done: tuple[str, ...]
    left: tuple[Fault, ...]


def repair(found: Examination) -> Repair:
    """Mend what is certain. Rows that still have an error are left out, and named in `left` with
    their faults.
    """
    problems: list[Problem] = []
    done: list[str] = [
        f"file: {fault.detail}; written without it"
        for fault in found.faults
        if fault.row == 0 and fault.repairable
    ]
    left: list[Fault] = [fault for fault in found.faults if fault.row == 0 and not fault.repairable]
    for candidate in found.candidates:
        where = f"row {candidate.row} ({candidate.id})"
        if any(
            f.kind in ("duplicate-text", "duplicate-id") and f.repairable for f in candidate.faults
        ):
            done.append(f"{where}: left out, it repeats another row")
            continue
        gold = _final_gold(candidate)
        if gold is not None and candidate.gold is None:
            done.append(f"{where}: read the answer {str(candidate.raw_gold)[:20]!r} as {gold}")
        text, actions = (
            faults.repair(candidate.text, gold) if candidate.text is not None else (None, [])
        )
        text = text.strip() if text is not None else None
        done += [f"{where}: {action}" for action in actions]
        done += [f"{where}: {f.detail}" for f in candidate.faults if f.kind in _SETTLED_BY_READING]
        again = (
            []
            if text is None
            else [Fault(candidate.row, candidate.id, *f) for f in faults.find(text, gold)]
        )
        again += [
            f
            for f in candidate.faults
            if f.kind in _OF_ROWS and not (gold is not None and f.kind.startswith("gold-"))
        ]
        left += again
        if text is not None and gold is not None and not any(f.severity == "error" for f in again):
            problems.append(Problem.of(candidate.id, text, gold))
    return Repair(tuple(problems), tuple(done), tuple(left))


_SETTLED_BY_READING = frozenset({"missing-id", "texts-disagree"})
_OF_ROWS = frozenset(
    {
        "unreadable-row",
        "repeated-field",
        "missing-text",
        "conversation",
        "missing-gold",
        "golds-disagree",
        "gold-with-fraction",
        "gold-not-an-integer",
        "gold-out-of-range",
        "bad-id",
        "duplicate-id",
        "duplicate-text",
        "conflicting-duplicate",
        "hash-mismatch",
    }
)


def write(problems: Iterable[Problem], path: Path) -> None:
    """Our own JSON Lines, written whole or not at all, readable by the owner only.

    Raises:
        SuiteError: the folder is missing or cannot be written.
    """
    try:
        with durable.replacing(path) as file:
            for problem in problems:
                file.write(f"{line(problem)}\n".encode())
    except OSError as error:
        raise SuiteError("cannot write the problem file", got=error.strerror, where=path) from error


def line(problem: Problem) -> str:
    """One line of our own JSON Lines, without its newline."""
    return json.dumps(problem.as_dict(), ensure_ascii=False)


# --- against a clean copy ---


@dataclass(frozen=True, slots=True)
class Difference:
    """How a row differs from the reference. `row` and `id` are None for a problem that only the
    reference has.
    """

    kind: Literal["missing", "extra", "answer-differs", "number-differs", "wording-differs"]
    row: int | None
    id: str | None
    reference_id: str | None
    detail: str


def compare(found: Examination, reference: Suite) -> list[Difference]:
    """Where the rows of a file differ from a clean copy, by normalised text and by gold; order and
    ids play no part.

    Figures (asy, tikz) and the ways to typeset one formula are no difference. A changed number or
    letter is told from changed wording, since only the former makes another problem.
    """
    ours = [
        (c, _tokens(c.text))
        for c in found.candidates
        if c.text is not None and len(c.text) <= faults.MAX_TEXT
    ]
    theirs = [(p, _tokens(p.problem)) for p in reference.problems]
    if len(ours) > _MAX_COMPARED or len(theirs) > _MAX_COMPARED:
        raise SuiteError(
            "too many rows to compare", expected=f"at most {_MAX_COMPARED}", where=found.name
        )
    differences: list[Difference] = []
    unmatched = dict(enumerate(theirs))
    by_tokens: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, (_, tokens) in unmatched.items():
        by_tokens[tokens].append(i)
    inexact = []
    for candidate, tokens in ours:
        if by_tokens[tokens]:
            problem, _ = unmatched.pop(by_tokens[tokens].pop())
            differences += _gold_difference(candidate, problem)
        else:
            inexact.append((candidate, tokens))
    bags = {i: Counter(tokens) for i, (_, tokens) in unmatched.items()}
    pairs = sorted(
        (
            (_likeness(Counter(tokens), bags[i]), n, i)
            for n, (_, tokens) in enumerate(inexact)
            for i in unmatched
        ),
        key=lambda pair: -pair[0],
    )
    matched: set[int] = set()
    for likeness, n, i in pairs:
        if likeness < _ALIKE or n in matched or i not in unmatched:
            continue
        matched.add(n)
        candidate, tokens = inexact[n]
        problem, reference_tokens = unmatched.pop(i)
        differences.append(_text_difference(candidate, tokens, problem, reference_tokens))
        differences += _gold_difference(candidate, problem)
    differences += [
        Difference("extra", c.row, c.id, None, "not in the reference")
        for n, (c, _) in enumerate(inexact)
        if n not in matched
    ]
    differences += [
        Difference("missing", None, None, p.id, "only in the reference")
        for p, _ in unmatched.values()
    ]
    return sorted(differences, key=lambda d: (d.row is None, d.row or 0))


def _gold_difference(candidate: Candidate, problem: Problem) -> list[Difference]:
    if candidate.gold is None or candidate.gold == problem.answer:
        return []
    detail = f"{candidate.gold}, reference {problem.answer}"
    return [Difference("answer-differs", candidate.row, candidate.id, problem.id, detail)]


_FIGURE = re.compile(
    r"\[asy\].*?(?:\[/asy\]|\Z)|\\begin\{(tikzpicture|asy|center)\}.*?\\end\{\1\}", re.S
)
_SAME = (
    (
        re.compile(
            r"\\(?:left|right|displaystyle|textstyle|limits|quad|qquad|hspace\{[^}]*\})(?![A-Za-z])"
        ),
        " ",
    ),
    (
        re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|operatorname|emph|mbox)(?=\{)"),
        " ",
    ),
    (re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:overarc|wideparen|overparen|widehat)(?![A-Za-z])"), r"\\arc"),
    (re.compile(r"\\(?:ldots|cdots|dots|dotsc|dotsb|hdots)(?![A-Za-z])|\.\.\.|\u2026"), r"\\dots"),
    (re.compile(r"\\([lgn]e)q(?![A-Za-z])"), r"\\\1"),
    (re.compile(r"\\begin\{[a-z*]+\}|\\end\{[a-z*]+\}|\\\\"), " "),
    (re.compile(r"(?<=\d)(?:,|\{,\}|\\,)(?=\d{3})"), ""),
    (re.compile(r"\\[,;:! ]|\\[()\[\]]|[${}&~]"), " "),
)
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[A-Z](?![a-z])|[A-Za-z]+|[^\s.,;:?!'\"`\u2019\u201c\u201d\\]")


def _tokens(text: str) -> tuple[str, ...]:
    """The words, numbers and symbols of a text, the same for every way to typeset it."""
    text = _FIGURE.sub(" ", faults.repair(text, None)[0])
    for pattern, replacement in _SAME:
        text = pattern.sub(replacement, text)
    return tuple(token if len(token) == 1 else token.lower() for token in _TOKEN.findall(text))


def _likeness(a: Counter[str], b: Counter[str]) -> float:
    """Shared tokens over all tokens of the longer text, in 0..1."""
    return (a & b).total() / max(a.total(), b.total(), 1)


def _text_difference(
    candidate: Candidate, tokens: tuple[str, ...], problem: Problem, reference: tuple[str, ...]
) -> Difference:
    changes = []
    touches_mathematics = False
    matcher = difflib.SequenceMatcher(None, reference, tokens, autojunk=False)
    for operation, a0, a1, b0, b1 in matcher.get_opcodes():
        if operation == "equal":
            continue
        was, now = reference[a0:a1], tokens[b0:b1]
        touches_mathematics |= any(
            token[0].isdigit() or (len(token) == 1 and token not in "aI") for token in was + now
        )
        changes.append(
            f"{' '.join(was[:8]) or 'nothing'!r} became {' '.join(now[:8]) or 'nothing'!r}"
        )
    more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
    kind: Literal["number-differs", "wording-differs"] = (
        "number-differs" if touches_mathematics else "wording-differs"
    )
    return Difference(kind, candidate.row, candidate.id, problem.id, "; ".join(changes[:3]) + more)
