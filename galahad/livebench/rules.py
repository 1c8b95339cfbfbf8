"""What counts as an answer to a LiveBench question, by two rules that are reported beside each
other.

*asked*: the form that the question's prompt asks for, and nothing more lenient: all of it or
nothing. *published*: what LiveBench's own scorer accepts (its `process_results`, read at commit
0b729d24 and written anew here), with the fallbacks that it has: a box, the text of an option, the
last line or the last word. Only the second can be compared with LiveBench's figures. It also counts
what was not
meant as an answer: four letters in a row anywhere, a gold among the last fifty characters, a word
that contains the right one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from galahad.responses.integer import last_box

Task = Literal["math_comp", "zebra_puzzle", "web_of_lies_v2"]


class Question(NamedTuple):
    """One row of a question file. `template` is what must not be split; a row of no template is its
    own.
    """

    id: str
    task: Task
    template: str
    released: str
    text: str
    gold: str


class Rule(NamedTuple):
    """How a task is graded.

    asked: (response, gold, whether the token limit cut it) -> right. published: (response,
    question) -> score, 0..1.
    form: the gold as the prompt asks for it, which both rules grade as right.
    """

    asked: Callable[[str, str, bool], bool]
    published: Callable[[str, Question], float]
    form: Callable[[str], str]


# -- math_comp: three digits (AIME), or a letter five times in a row (AMC, SMC) --------------------

_END_CHARACTERS = (
    # how far from the end "the last part of the response" may stand, for a closing bracket or a
    # short sentence
    60
)
_OPTION = re.compile(r"\\textbf\{\(([A-E])\)\s?\}(.*?)(?:\\qquad|\$)")


def asked_math_comp(response: str, gold: str, cut: bool = False) -> bool:
    """Three digits as the last part of the response, or the letter five times in a row.

    A response that was cut off has no last part. Three digits are none inside a longer number, a
    decimal or a grouped one.
    """
    if gold.isdigit():
        numbers = list(
            re.finditer(
                r"(?<![0-9])(?<![0-9][.,])([0-9]{3})(?![0-9])(?![.,][0-9])", response.rstrip()
            )
        )
        at_end = bool(numbers) and numbers[-1].start() >= len(response.rstrip()) - _END_CHARACTERS
        return at_end and not cut and numbers[-1][1] == gold
    letters = [
        match[1] for match in re.finditer(r"(?<![A-Za-z])([A-Z])\1{4}(?![A-Za-z])", response)
    ]
    return bool(letters) and letters[-1] == gold


def published_math_comp(response: str, question: Question) -> float:
    """The gold in the last 50 characters; a letter four times anywhere, alone in the last tag or
    box, or its option at the end.
    """
    gold = question.gold
    if gold.isdigit():
        return float(gold in response[-50:])
    options = {
        letter: text.strip().strip("$").strip("~")
        for letter, text in _OPTION.findall(question.text)
    }
    # as the scorer has it where the question has no such text
    option = options.get(gold) or "FAILURE"
    tagged = _tagged(response)
    return float(
        (bool(tagged) and set(tagged[-1].lower()) == {gold.lower()})
        or 4 * gold in response
        or _plain_box(response).lower() == gold.lower()
        or option in response[-20 - len(option) :]
    )


# -- zebra_puzzle: a list in <solution>, in the older questions a word in ***stars*** --------------

_NUMBERS = dict(
    zip(
        "123456789",
        ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
        strict=True,
    )
)
LISTS_SINCE = "2024-11-25"
"""Release of the zebra puzzles that ask for a list, and have the newer scorer."""


def asked_zebra_puzzle(response: str, gold: str, cut: bool = False) -> bool:
    """The whole list in the last <solution>...</solution>; the older questions ask for one word, in
    the last ***...***.
    """
    pattern = (
        r"<solution>((?:(?!<solution>).)*?)</solution>" if "," in gold else r"\*\*\*([^*]+)\*\*\*"
    )
    found = re.findall(pattern, response, re.DOTALL)
    return bool(found) and _words(found[-1]) == _words(gold)


def published_zebra_puzzle(response: str, question: Question) -> float:
    """Of a list half for the part that is right and half for all of it; of the older questions one
    word, or nothing.
    """
    if question.released < LISTS_SINCE:
        words = re.findall(r"\*\*\*(\w+)\*\*\*", response) or re.findall(r"\b\w+\b", response)
        said, gold = (words[-1].lower() if words else ""), question.gold.lower()
        return float(gold in (said, f"{said} movies", _NUMBERS.get(said)))
    golds = question.gold.split(",")
    lists = _tagged(response)
    if not lists and (box := _plain_box(response)):
        lists = [box]
    if not lists and (last := response.strip().split("\n")[-1]).count(",") == len(golds) - 1:
        lists = [last]
    said = ",".join(lists).split(",") if lists else []
    if len(lists) > 1:
        said = said[-len(golds) :]

    def plain(word: str) -> str:
        return word.strip().lower().replace("-", " ")

    n_right = sum(
        plain(g) in plain(s).replace("position", "") for g, s in zip(golds, said, strict=False)
    )
    return ((n_right == len(golds)) + n_right / len(golds)) / 2


# -- web_of_lies_v2: yes and no in bold ------------------------------------------------------------

_SAID = ("yes", "no", "unknown")


def asked_web_of_lies(response: str, gold: str, cut: bool = False) -> bool:
    """The last list of yes and no in **bold**. All of it counts or nothing, as one answer."""
    lists = [_words(bold.strip().rstrip(".")) for bold in re.findall(r"\*\*([^*]+)\*\*", response)]
    said = [words for words in lists if set(words) <= {"yes", "no"}]
    return bool(said) and said[-1] == _words(gold)


def published_web_of_lies(response: str, question: Question) -> float:
    """The last tag, else the last three bold words of yes, no and unknown, else the last box, else
    the last three in plain text.
    """
    gold = question.gold.lower()
    if tagged := _tagged(response):
        said = tagged[-1]
    else:
        bold = [word for part in re.findall(r"\*\*(.*?)\*\*", response) for word in part.split()]
        plain = (word.lower().strip().replace(",", "").replace(".", "") for word in bold)
        said = ", ".join([word for word in plain if word in _SAID][-3:])
        said = (
            said
            or last_box(response.replace("\\textbf{", "\\boxed{"))
            or _last_combination(response.lower())
        )
    n_words = sum(said.count(word) for word in _SAID)
    return float(said == gold or (n_words == 3 and gold in said))


def _last_combination(text: str) -> str:
    found = {
        text.find(", ".join(words)): ", ".join(words)
        for words in itertools.product(_SAID, repeat=3)
    }
    return found[max(found)] if max(found) >= 0 else ""


# -- shared ----------------------------------------------------------------------------------------


def _words(text: str) -> list[str]:
    return [re.sub(r"\s+", " ", part).strip().lower() for part in text.split(",")]


def _tagged(response: str) -> list[str]:
    """What stands in <solution>...</solution>, on one line each."""
    return re.findall(r"<solution>(.*?)</solution>", response) or re.findall(
        r"</solution>(.*?)</solution>", response
    )


def _plain_box(response: str) -> str:
    return (last_box(response) or "").replace("\\text{", "").replace("}", "").replace("\\", "")


RULES: dict[Task, Rule] = {
    "math_comp": Rule(
        asked_math_comp, published_math_comp, lambda gold: gold if gold.isdigit() else 5 * gold
    ),
    "zebra_puzzle": Rule(
        asked_zebra_puzzle,
        published_zebra_puzzle,
        lambda gold: f"<solution>{gold}</solution>" if "," in gold else f"***{gold}***",
    ),
    "web_of_lies_v2": Rule(asked_web_of_lies, published_web_of_lies, lambda gold: f"**{gold}**"),
}
