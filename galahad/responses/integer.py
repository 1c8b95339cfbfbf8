"""The integer that a response commits itself to: one rule for grading, voting and banking.

The rule, in order:

1. Reasoning in `<think>`-like tags is not part of the answer. Reasoning that is never closed makes
   the whole response unfinished, and an unfinished response answers nothing, whatever boxes it
   holds.
2. The last balanced `\\boxed{...}` that is not an empty placeholder is the answer.
3. Without one, the last stated final answer is: `<answer>...</answer>`, `Answer: ...`, `The answer
   is ...`, `**Final Answer**` with its next line, `#### ...`.
4. Its content is an integer after removing markup, units, thousands separators and leading zeros;
   digits of any script count. `m+n=204` is 204, `204.0` is 204, `20.4` is an answer that is not an
   integer.
5. Arithmetic such as `408/2` is only *translated* here, into a closed grammar; `resolve` has it
   computed in the sandbox. No text of a model is ever evaluated in this process.

"Could not extract" is not "wrong": a response without an answer in a stated form, or with one that
cannot be read, is `not-extracted`. A response that does commit itself, but to no integer (`20.4`,
an empty `Answer: \\boxed{}`, a number beyond any answer, a box inside unfinished reasoning), is
wrong.

This module does not know what a problem is, and does not restrict answers to 0..999: that is a
property of the gold.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

Reason = Literal[
    "integer",  # `value` holds it
    "expression",  # `expression` holds arithmetic that `resolve` can compute
    "no-answer",  # nothing in a stated form
    # something in a stated form that is not understood: several numbers, words, variables
    "unreadable",
    "unresolved",  # arithmetic that the sandbox could not compute within its limits
    "not-an-integer",  # 20.4, 1/3
    "too-large",  # more digits than any answer has
    "empty",  # a stated answer with nothing in it
    "unfinished",  # the only answers stand in reasoning that was never closed
]
Grade = Literal["right", "wrong", "not-extracted"]

# Committed, and not an integer that could match: wrong. Every other reason without a value is
# `not-extracted`.
_COMMITTED_TO_NO_INTEGER: frozenset[Reason] = frozenset(
    {"not-an-integer", "too-large", "empty", "unfinished"}
)

# Far below the 4300 digits where int() itself refuses; no answer, and no intermediate that is
# printed, needs more.
MAX_DIGITS = 18
MAX_CONTENT = 300
MAX_PHRASE = 2000
MAX_DEPTH = 24


@dataclass(frozen=True, slots=True)
class Extraction:
    """What a response commits itself to.

    `value` is the integer, or None with the `reason`. `expression` is arithmetic in Python notation
    over exact rationals (see `program`), present when `reason` is "expression" and kept by
    `resolve`. `span` is the half-open range of the answer's content in the response, or None when
    there is none.
    """

    value: int | None
    expression: str | None
    reason: Reason
    span: tuple[int, int] | None


# --- folding: one character to one character, so that spans stay true ---

_FOLDED = {
    **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},  # full-width forms
    **dict.fromkeys(map(ord, "\u2212\u2010\u2011\u2012\u2013"), "-"),
    **dict.fromkeys(map(ord, "\u00a0\u2007\u2009\u200a\u202f\u3000\t"), " "),
    **dict.fromkeys(map(ord, "\u00d7\u00b7\u2219\u22c5"), "*"),
    ord("\u00f7"): "/",
    ord("\u3002"): ".",
}


def _ascii_digit(match: re.Match[str]) -> str:
    # Decimal digits only: superscripts have a digit value but no decimal one, and 2³ must not
    # become 23.
    return str(unicodedata.decimal(match[0]))


def _fold(text: str) -> str:
    """`text` with full-width forms and all scripts' decimal digits as ASCII; same length, same
    positions.
    """
    return re.sub(r"(?![0-9])\d", _ascii_digit, text.translate(_FOLDED))


# --- reading one answer's content ---

_GROUPED = r"\d{1,3}(?:(?:,|\{,\}|\\[,;:! ]|[ _']|,\\!)\d{3})+(?!\d)"
_INTEGER = re.compile(rf"([+-]?) ?({_GROUPED}|\d+)(?:\.(\d*))?")
_TEXT_COMMAND = (
    r"\\(?:text|mathrm|textrm|textbf|textit|mathbf|mathit|mathsf|boldsymbol|bm|mbox|operatorname|emph|underline"
    r"|fbox|boxed)"
)
_WRAPPERS = (
    re.compile(rf"{_TEXT_COMMAND}\s*\{{(.*)\}}", re.S),
    re.compile(r"\$+(.*?)\$+", re.S),
    re.compile(r"\\\((.*)\\\)", re.S),
    re.compile(r"\\\[(.*)\\\]", re.S),
    re.compile(r"\*{1,3}([^*]*)\*{1,3}", re.S),
    re.compile(r"_{1,2}([^_]*)_{1,2}", re.S),
    re.compile(r"`+(.*?)`+", re.S),
    re.compile(r"[\"'\u201c](.*)[\"'\u201d]", re.S),
    re.compile(r"\{(.*)\}", re.S),
    re.compile(r"\[(.*)\]", re.S),
    re.compile(r"<([a-z]+)>(?P<inner>.*)</\1>", re.S),
)
_SPACING = re.compile(
    r"\\(?:displaystyle|textstyle|quad|qquad|left(?=\b|\()|right(?=\b|\)))|(?<!\\)~"
)
_EDGE_SPACE = r"(?:\s|\\[,;:!> ]|\\\\)+"
_UNIT = re.compile(
    rf"(?:{_EDGE_SPACE})?(?:"
    rf"\^?\{{?\\circ\}}?|°|\\?%|\\?\$"
    rf"|{_TEXT_COMMAND}\s*\{{[^{{}}0-9]*\}}(?:\^\{{?\d\}}?)?"
    rf"|(?:[A-Za-z][A-Za-z.\-/]*)(?: [A-Za-z][A-Za-z.\-/]*)*(?:\^\{{?\d\}}?|[\u00b2\u00b3])?"
    rf")(?:{_EDGE_SPACE})?"
)
# Words after a number that change it: "204 or more" is not 204, "5 million" is not 5.
_NOT_UNITS = re.compile(
    r"\b(?:or|and|to|plus|minus|times|mod|modulo|choose|over|through|hundred|thousand|million|billion|dozen|factorial|more|less)\b",
    re.I,
)
_PLACEHOLDER = re.compile(
    r"(?:[\s.?_\u2026~$]|\\[,;:! ]|\\[lc]?dots|\\quad|\\phantom\{[^{}]*\})*"
    r"(?:(?:your |the |final |numerical |integer )*answer)?[\s.?~$]*",
    re.I,
)


# What may follow an integer without changing it: the decimal that it rounds, the modulus of a
# congruence.
_QUALIFIED = re.compile(r"\s*(?:\\approx|\u2248|\\pmod\b|\(mod\b)")


class _Reading(NamedTuple):
    value: int | None
    expression: str | None
    reason: Reason


_UNREADABLE = _Reading(None, None, "unreadable")


def integer(text: str) -> int | None:
    """The integer that `text` is (sign, leading zeros and thousands separators allowed, nothing
    else), else None.

    For golds and program output. `25.0` is None: a fraction was written, so somebody's types are
    wrong.
    """
    reading = _whole_number(_fold(text).strip())
    return reading.value if reading is not None and "." not in text else None


def _whole_number(content: str) -> _Reading | None:
    """A reading if `content` is a number and nothing else; None if it is something else."""
    match = _INTEGER.fullmatch(content)
    if match is None:
        return None
    sign, digits, fraction = match.groups()
    digits = re.sub(r"\D", "", digits).lstrip("0") or "0"
    if fraction and fraction.strip("0"):
        return _Reading(None, None, "not-an-integer")
    if len(digits) > MAX_DIGITS:
        return _Reading(None, None, "too-large")
    return _Reading(int(sign + digits), None, "integer")


def _peel(content: str) -> str:
    """`content` without markup around it, and without closing punctuation."""
    content = _SPACING.sub(" ", content)
    content = re.sub(r"^\s*\\\$(?=\s*\d)", "", content)  # an amount in dollars
    for _ in range(MAX_DEPTH):
        peeled = re.sub(rf"^{_EDGE_SPACE}|{_EDGE_SPACE}$", "", content)
        peeled = re.sub(r"(?<=[^\s.])[.,;:]+$", "", peeled)
        for wrapper in _WRAPPERS:
            match = wrapper.fullmatch(peeled)
            if match is not None and _balanced(inner := match.groupdict().get("inner") or match[1]):
                peeled = inner
                break
        if peeled == content:
            break
        content = peeled
    return content


def _balanced(content: str) -> bool:
    depth = 0
    for char in content:
        depth += (char in "{[") - (char in "}]")
        if depth < 0:
            return False
    return depth == 0


def _read(content: str, depth: int = 0) -> _Reading:  # noqa: PLR0911 - one return per form
    """What the content of a box or of an answer tag says."""
    # the patterns below may backtrack; a plain number needs none of them
    if len(content) > MAX_CONTENT:
        return _whole_number(content.strip()) or _UNREADABLE
    content = _peel(content)
    if _PLACEHOLDER.fullmatch(content):
        return _Reading(None, None, "empty")
    reading = _whole_number(content)
    if reading is not None:
        return reading
    if depth > 2:
        return _UNREADABLE
    number = _INTEGER.match(content)
    if number is not None and (_is_unit(tail := content[number.end() :]) or _QUALIFIED.match(tail)):
        return _whole_number(number[0]) or _UNREADABLE
    for relation in ("=", "\\equiv", "\u2261"):
        left, found, right = content.rpartition(relation)
        if found:
            # "x=3, y=4" states two numbers; "a=100+104=204" states one.
            if re.search(r"[,;](?!\d{3})|\\text\s*\{\s*(?:and|or)|\b(?:and|or)\b", left + right):
                return _UNREADABLE
            return _read(right, depth + 1)
    source = _translate(content)
    return _Reading(None, source, "expression") if source is not None else _UNREADABLE


def _is_unit(tail: str) -> bool:
    if not _UNIT.fullmatch(tail) or _NOT_UNITS.search(tail):
        return False
    # "12x" and "5 i" are a variable, not a unit.
    return not re.fullmatch(r"\s*[A-Za-z](?:\^.*)?", tail)


_FILLER = re.compile(
    r"(?:\s|:|therefore|thus|hence|then|so|simply|just|exactly|indeed|equal to|clearly|given "
    r"by|now|in fact|of course|,"
    r"|the (?:number|integer|value|sum|remainder)(?= \d| \$|:)|[\u662f\u4e3a])*",
    re.I,
)
_PHRASE_END = re.compile(
    r"(?:[.!?]+(?=\s|\*|$|\")|\n|[,;](?!\d{3})|\((?!mod)|\u2014| - "
    r"|\b(?:because|since|as|which|where|when|after|by|from|for)\b).*",
    re.S | re.I,
)


def _read_phrase(content: str) -> _Reading:
    """What the words after "the answer is" say; prose goes on to explain, so it is cut before it is
    read.
    """
    content = content.lstrip()
    if re.fullmatch(r"\d+", content.rstrip(" .!*")):  # of any length
        return _read(content.rstrip(" .!*"))
    content = content[:MAX_PHRASE]
    content = content[_match_end(_FILLER, content) :]
    whole = content.split("\n", 1)[0]
    if "\\boxed" in whole or whole.lstrip().startswith(("$", "\\(", "\\[")):
        math = re.match(r"\s*(?:\$+[^$]*\$+|\\\(.*?\\\)|\\\[.*?\\\])", content, re.S)
        if math is not None:
            return _read(math[0])
    phrase = _PHRASE_END.sub("", content)
    phrase = re.sub(r"[!*`_\s]+$", "", re.sub(r"^[*`_\s]+", "", phrase))
    return _read(phrase)


def _match_end(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.match(text)
    return match.end() if match else 0


# --- finding the answer in a response ---

_REASONING_TAG = re.compile(r"<(/?)(?:think|thinking|reasoning)>", re.I)
_BOX = re.compile(r"\\f?boxed\s*")
_BARE_BOX = re.compile(r"[+-]?\d[\d,]*")
_ANSWER_TAG = re.compile(r"<(/?)answer>", re.I)
_PREFIX = r"(?:the |a )?(?:correct |final |numerical |integer ){0,3}"
_STATED = re.compile(
    rf"(?:^|(?<=[^A-Za-z\\])){_PREFIX}answer\b[*_]* "
    rf"?(?:is\b:?|=|:)[*_]*(?P<inline>[^\n]*[^\n\s*_$.:#][^\n]*)"
    r"|^[*_# ]{0,8}(?:final )?answer\b[*_: "
    r"]{0,8}\n\s*(?P<heading>\S[^\n]*(?:\n[^\n]+\n\s*(?:\$\$|\\\]))?)"
    r"|^#{4} (?P<hashes>[^\n]*)"
    r"|\u7b54\u6848(?:\u662f|\u4e3a|:)(?P<chinese>[^\n]*)",
    re.M | re.I,
)
# What stands directly before "the answer is" and makes it no statement.
_SUPPOSED = re.compile(
    r"\b(?:if|whether|unless|suppose|assume|what|that|perhaps|maybe|like)\s*$", re.I
)
_DENIED = re.compile(
    r"\s*(?:not|never|unknown|unclear|undefined|between|about|around|at (?:least|most)"
    r"|(?:less|more|greater|fewer) than)\b",
    re.I,
)


def extract(text: str, *, in_reasoning: bool = False) -> Extraction:
    """The answer that `text` commits itself to, by the rule at the top of this module. Pure; never
    raises.

    `in_reasoning` says that the prompt already opened the reasoning, as some chat templates do.
    """
    folded = _fold(text)
    start, finished = after_reasoning(folded, in_reasoning)
    if not finished:
        stated = _last_box(folded, 0) or _last_stated(folded, 0)
        return Extraction(
            None, None, "unfinished" if stated else "no-answer", stated[1] if stated else None
        )
    found = _last_box(folded, start) or _last_stated(folded, start)
    if found is None:
        return Extraction(None, None, "no-answer", None)
    reading, span = found
    return Extraction(reading.value, reading.expression, reading.reason, span)


def last_box(text: str) -> str | None:
    """What the last balanced `\\boxed{...}` or `\\fbox{...}` holds, as it stands; None where there
    is none.
    """
    closing = _matching_braces(text, 0)
    boxes = [box.end() for box in _BOX.finditer(text) if box.end() in closing]
    return text[boxes[-1] + 1 : closing[boxes[-1]]] if boxes else None


def after_reasoning(text: str, in_reasoning: bool) -> tuple[int, bool]:
    """Where the answer part begins (after the last closing tag), and whether the reasoning before
    it was closed.
    """
    start, is_open = 0, in_reasoning
    for tag in _REASONING_TAG.finditer(text):
        is_open = not tag[1]
        if not is_open:
            start = tag.end()
    return start, not is_open


def _last_box(text: str, start: int) -> tuple[_Reading, tuple[int, int]] | None:
    """The last balanced box from `start` on that is not a placeholder."""
    closing = _matching_braces(text, start)
    spans = []
    for box in _BOX.finditer(text, start):
        at = box.end()
        if at in closing:
            spans.append((at + 1, closing[at]))
        elif bare := _BARE_BOX.match(text, at):
            spans.append(bare.span())
    # By where a box ends: of nested boxes the outer one is last, and _peel opens the inner.
    for span in sorted(spans, key=lambda s: s[1], reverse=True):
        reading = _read(text[slice(*span)])
        if reading.reason != "empty":
            return reading, span
    return None


def _matching_braces(text: str, start: int) -> dict[int, int]:
    """For each balanced `{` from `start` on, the position of its `}`; one pass, so hostile nesting
    stays linear.
    """
    closing: dict[int, int] = {}
    opened: list[int] = []
    for brace in re.compile(r"\\[{}\\]|[{}]").finditer(text, start):
        if brace[0] == "{":
            opened.append(brace.start())
        elif brace[0] == "}" and opened:
            closing[opened.pop()] = brace.start()
    return closing


def _last_stated(text: str, start: int) -> tuple[_Reading, tuple[int, int]] | None:
    """The last final answer stated without a box."""
    tagged: tuple[int, int] | None = None
    opened: int | None = None
    for tag in _ANSWER_TAG.finditer(text, start):
        if not tag[1]:
            opened = tag.end()
        elif opened is not None:
            tagged, opened = (opened, tag.start()), None
    stated: tuple[int, int] | None = None
    for match in _STATED.finditer(text, start):
        span = match.span(match.lastgroup or 0)
        denied = _DENIED.match(text, *span)
        if not denied and not _SUPPOSED.search(text, max(start, match.start() - 24), match.start()):
            stated = span
    if tagged is not None and (stated is None or tagged[0] > stated[0] - len("<answer>")):
        return _read(text[slice(*tagged)]), _trim(text, tagged)
    if stated is not None:
        return _read_phrase(text[slice(*stated)]), _trim(text, stated)
    return None


def _trim(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """`span` without white space at its ends."""
    content = text[slice(*span)]
    end = span[0] + len(content.rstrip())
    return min(end, span[0] + len(content) - len(content.lstrip())), end


# --- arithmetic: translated here, computed in the sandbox ---

_TOKEN = re.compile(
    r"\s+|(?P<number>\d+(?:\.\d+)?)|\\[dt]?(?P<frac>frac)(?![A-Za-z])|\\[dt]?(?P<binom>binom)(?![A-Za-z])|\\(?P<sqrt>sqrt)(?![A-Za-z])"
    r"|\\(?P<floor>lfloor)|\\rfloor(?P<endfloor>)|\\(?P<ceil>lceil)|\\rceil(?P<endceil>)"
    r"|(?P<times>\\times|\\cdot|\\ast|\*(?!\*))|(?P<divide>\\div|/)|(?P<power>\^|\*\*)|(?P<mod>\\bmod|\\mod|%)"
    r"|\\(?:left|right|[,;:! ])(?P<skip>)|(?P<op>[-+(){}!])"
)
# Exact rationals only. `power` and `fact` refuse at once what the sandbox would end after seconds.
_PRELUDE = """\
from fractions import Fraction as F
from math import ceil, comb, factorial, floor, isqrt
def whole(x):
    if x.denominator != 1:
        raise ValueError("not an integer")
    return x.numerator
def power(a, b):
    bits = max(abs(a.numerator).bit_length(), a.denominator.bit_length())
    if abs(whole(b)) * bits > 10**7:
        raise OverflowError
    return a ** whole(b)
def fact(a):
    if whole(a) > 10**5:
        raise OverflowError
    return F(factorial(whole(a)))
def binom(a, b):
    return F(comb(whole(a), whole(b)))
def root(a):
    top, bottom = isqrt(a.numerator), isqrt(a.denominator)
    if top * top != a.numerator or bottom * bottom != a.denominator:
        print("irrational")
        raise SystemExit
    return F(top, bottom)
def modulo(a, b):
    return F(whole(a) % whole(b))
"""


class _NotArithmetic(Exception):
    pass


class _Parser:
    """Recursive descent over `_TOKEN`; emits Python over the names of `_PRELUDE`, never a name of
    the input.
    """

    def __init__(self, content: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(content):
            match = _TOKEN.match(content, at)
            if match is None:
                raise _NotArithmetic
            kind = match.lastgroup
            if kind == "op":
                self.tokens.append((match[0], match[0]))
            elif kind is not None and kind != "skip":
                self.tokens.append((kind, match[0]))
            at = match.end()
        self.at = 0
        self.depth = 0

    def peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, kind: str | None = None) -> str:
        if self.at >= len(self.tokens) or (kind is not None and self.peek() != kind):
            raise _NotArithmetic
        self.at += 1
        return self.tokens[self.at - 1][1]

    def sum(self) -> str:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _NotArithmetic
        result = self.product()
        while self.peek() in ("+", "-"):
            operator = self.take()
            result = f"({result}{operator}{self.product()})"
        self.depth -= 1
        return result

    def product(self) -> str:
        result = self.signed()
        while True:
            kind = self.peek()
            if kind in ("times", "divide"):
                self.take()
                result = f"({result}{'*' if kind == 'times' else '/'}{self.signed()})"
            elif kind == "mod":
                self.take()
                result = f"modulo({result},{self.signed()})"
            elif kind in ("(", "{", "frac", "binom", "sqrt", "floor", "ceil"):
                result = f"({result}*{self.signed()})"  # 2(3+4)
            else:
                return result

    def signed(self) -> str:
        sign = ""
        while self.peek() in ("+", "-"):
            sign = ("" if sign else "-") if self.take() == "-" else sign
        result = self.power()
        return f"(-{result})" if sign else result

    def power(self) -> str:
        base = self.postfix()
        if self.peek() != "power":
            return base
        self.take()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _NotArithmetic
        exponent = self.signed()
        self.depth -= 1
        return f"power({base},{exponent})"

    def postfix(self) -> str:
        result = self.atom()
        while self.peek() == "!":
            self.take()
            result = f"fact({result})"
        return result

    def group(self) -> str:
        """A braced argument, or the single digit that TeX takes without braces (`\\frac12`)."""
        if self.peek() == "number" and len(self.tokens[self.at][1]) == 1:
            return f"F({self.take()})"
        # \frac12: one token holds both arguments
        if self.peek() == "number" and len(self.tokens[self.at][1]) == 2:
            digits = self.take()
            self.tokens.insert(self.at, ("number", digits[1]))
            return f"F({digits[0]})"
        self.take("{")
        result = self.sum()
        self.take("}")
        return result

    def atom(self) -> str:
        kind = self.peek()
        if kind == "number":
            digits = self.take()
            whole, _, fraction = digits.partition(".")
            if len(digits) > MAX_DIGITS:
                raise _NotArithmetic
            return f"F({int(whole)})" if not fraction else f"F('{int(whole)}.{fraction}')"
        if kind in ("(", "{"):
            self.take()
            result = self.sum()
            self.take(")" if kind == "(" else "}")
            return result
        if kind in ("frac", "binom"):
            self.take()
            first, second = self.group(), self.group()
            return f"({first}/{second})" if kind == "frac" else f"binom({first},{second})"
        if kind == "sqrt":
            self.take()
            return f"root({self.group()})"
        if kind in ("floor", "ceil"):
            self.take()
            result = self.sum()
            self.take("end" + kind)
            return f"F({kind}({result}))"
        raise _NotArithmetic


def _translate(content: str) -> str | None:
    """`content` as Python arithmetic over `_PRELUDE`, or None if it is not arithmetic on
    numbers.
    """
    try:
        parser = _Parser(re.sub(rf"{_GROUPED}", lambda m: re.sub(r"\D", "", m[0]), content))
        source = parser.sum()
    except _NotArithmetic:
        return None
    return source if parser.at == len(parser.tokens) else None


def program(expression: str) -> str:
    """A Python program that prints the integer that an extraction's `expression` is, or "fraction"
    if it is none.
    """
    return (
        f"{_PRELUDE}result = {expression}\nprint(result.numerator if result.denominator == 1 "
        f"else 'fraction')\n"
    )


class Execution(Protocol):
    """What `resolve` needs to know about a run in the sandbox."""

    @property
    def status(self) -> str:
        """`ok` if the program ended by itself with exit code 0, within its limits and with its
        output whole.
        """

    @property
    def stdout(self) -> str: ...


def resolve(extraction: Extraction, run: Callable[[str], Execution] | None = None) -> Extraction:
    """`extraction` with its expression computed by `run` (source -> execution), by default in the
    sandbox.

    An extraction without a pending expression comes back unchanged.

    Raises:
        SandboxUnavailable: this host cannot isolate a program.
    """
    if extraction.reason != "expression" or extraction.expression is None:
        return extraction
    execution = (run or _run_in_sandbox)(program(extraction.expression))
    printed = execution.stdout.strip()
    if execution.status != "ok":
        return replace(extraction, reason="unresolved")
    if printed in ("fraction", "irrational"):
        return replace(extraction, reason="not-an-integer")
    reading = _whole_number(printed)
    if reading is None or reading.reason == "not-an-integer":  # nothing that `program` prints
        return replace(extraction, reason="unresolved")
    return replace(extraction, value=reading.value, reason=reading.reason)


def _run_in_sandbox(source: str) -> Execution:
    from galahad import sandbox

    return sandbox.run(
        source, limits=sandbox.Limits(wall_seconds=10, cpu_seconds=2, memory_bytes=256 << 20)
    )


# --- what follows from an answer ---


def grade(extraction: Extraction, gold: int) -> Grade:
    """How `extraction` stands to the gold; see "could not extract" at the top of this module."""
    if extraction.value is not None:
        return "right" if extraction.value == gold else "wrong"
    return "wrong" if extraction.reason in _COMMITTED_TO_NO_INTEGER else "not-extracted"


class Vote(NamedTuple):
    """`value` is None unless `outcome` is "decided". `votes` attempts gave the first value,
    `voters` gave any.
    """

    value: int | None
    outcome: Literal["decided", "no-majority", "no-votes"]
    votes: int
    voters: int
    attempts: int


def vote(values: Iterable[int | None]) -> Vote:
    """maj@k: the most frequent value. Attempts without a value abstain; a tie for the first place
    is "no-majority".
    """
    ballots = list(values)
    ranking = Counter(value for value in ballots if value is not None).most_common()
    if not ranking:
        return Vote(None, "no-votes", 0, 0, len(ballots))
    first, votes = ranking[0]
    tied = len(ranking) > 1 and ranking[1][1] == votes
    voters = sum(n for _, n in ranking)
    return Vote(
        None if tied else first, "no-majority" if tied else "decided", votes, voters, len(ballots)
    )
