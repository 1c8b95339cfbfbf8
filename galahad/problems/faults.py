"""What is wrong with a problem's text: the faults that public copies really have, and the repairs
that are certain.

Every kind of fault is listed in `KINDS` with its severity: a row with an *error* must not reach a
model, one with a *warning* may. A repair is offered only where the original can be told from what
is left: a form feed before `rac{` was `\\frac{`. Repairing is pure and returns what it did.

Nothing here reads or writes files, and nothing knows of ids or of other rows.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Severity = Literal["error", "warning"]

KINDS: dict[str, tuple[Severity, str]] = {
    # the file
    "bom": ("warning", "the file begins with a byte order mark"),
    "no-final-newline": ("warning", "the last line has no newline: the file may be cut"),
    "half-set": ("warning", "15 rows, as half a year's AIME has, and a name that does not say so"),
    "incomplete-set": ("warning", "fewer rows than the set that the name promises"),
    # the row
    "unreadable-row": ("error", "the row cannot be parsed"),
    "repeated-field": ("error", "a field is given twice in one row"),
    "missing-text": ("error", "no problem field"),
    "empty-text": ("error", "the problem's text is empty"),
    "too-long": ("error", "the text is longer than any problem"),
    "texts-disagree": ("warning", "two problem fields hold different texts; the first is used"),
    "conversation": ("error", "several turns where one problem was expected"),
    "missing-gold": ("error", "no answer field, or an empty one; a solution field is never read"),
    "golds-disagree": ("error", "two answer fields hold different answers"),
    "gold-with-fraction": ("error", "the answer is written with a fraction, as 25.0 is"),
    "gold-not-an-integer": ("error", "the answer is not an integer"),
    "gold-out-of-range": ("error", "the answer is not in 0..999"),
    "missing-id": ("warning", "some rows have an id, this one has none"),
    "bad-id": ("error", "the id is not a short printable text"),
    "duplicate-id": ("error", "another row has the same id"),
    "duplicate-text": ("error", "another row has the same text and answer"),
    "conflicting-duplicate": ("error", "another row has the same text and a different answer"),
    "hash-mismatch": ("error", "the stored sha256 is not that of the text"),
    # the text
    "control-character": ("error", "a control character, mostly what is left of a LaTeX command"),
    "broken-latex": ("error", "a LaTeX command without its first letter"),
    "over-escaped": ("warning", "LaTeX commands with a doubled backslash"),
    "invisible-character": ("warning", "characters that are not visible"),
    "bad-character": (
        "error",
        "a replacement character or a lone surrogate: text was lost in decoding",
    ),
    "mojibake": ("warning", "UTF-8 that was read as another encoding"),
    "html": ("warning", "HTML tags or entities"),
    "chat-template": ("error", "a chat template is baked into the text"),
    "instruction": ("warning", "an instruction to the model is baked into the text"),
    "answer-in-text": ("error", "the text gives its answer away"),
    "solution-in-text": ("error", "a solution follows the problem"),
    "figure-missing": ("warning", "the text speaks of a figure that is not there"),
    "unbalanced-dollars": ("warning", "an odd number of $"),
    "unbalanced-braces": ("warning", "braces that do not match"),
}

MAX_TEXT = 20_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `row` counts from 1, 0 is the whole file; `repairable` says that `repair` would
    remove it.
    """

    row: int
    id: str
    kind: str
    detail: str
    repairable: bool = False

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind][0]


class Finding(NamedTuple):
    """A fault of a text that does not know its row."""

    kind: str
    detail: str
    repairable: bool


def find(text: str, gold: int | None) -> list[Finding]:
    """The faults of a problem's text, in the order of `KINDS`; `gold` lets it see whether the text
    gives it away.
    """
    if not text.strip():
        return [Finding("empty-text", "nothing but white space", False)]
    if len(text) > MAX_TEXT:
        return [Finding("too-long", f"{len(text)} characters, at most {MAX_TEXT}", False)]
    findings = [finding for detect in _DETECTORS for finding in detect(text)]
    if gold is not None:
        findings += _give_away(text, gold)
    order = list(KINDS)
    return sorted(findings, key=lambda finding: order.index(finding.kind))


def repair(text: str, gold: int | None) -> tuple[str, list[str]]:
    """`text` with every certain repair made, and one line for each kind of repair; `text` itself if
    there is none.
    """
    done: list[str] = []
    if len(text) > MAX_TEXT:
        return text, done
    for description, mend in _REPAIRS:
        mended = mend(text)
        if mended != text:
            done.append(description)
            text = mended
    if gold is not None:
        mended = _without_give_away(text, gold)
        if mended != text:
            done.append("cut the answer off the end of the text")
            text = mended
    return text, done


def _shown(text: str, at: int, width: int = 12) -> str:
    return ascii(text[max(0, at - width) : at + width])


# --- what is left of LaTeX after a careless unescape ---

# For each control character, the rests of the commands whose backslash and first letter it
# swallowed. White space that texts have for other reasons (tab, newline, carriage return) needs a
# rest that is no word.
_RESTS = {
    "\f": ("f", r"rac|orall|lat|box|ootnotesize|loor"),
    "\b": (
        "b",
        r"inom|egin|eta|ar|mod|oxed|ig|igl|igr|igg|ullet|ot|f|old|oldsymbol|ecause|ackslash|matrix",
    ),
    "\a": ("a", r"lpha|ngle|pprox|rcsin|rccos|rctan|rg|st|lign|symp|leph|cute|rray|cos|sin|tan"),
    "\v": ("v", r"ec|ert|ee|dots|arphi|arepsilon|artheta|dash"),
    "\t": (
        "t",
        r"riangle|imes|heta|frac|au|ilde|herefore|binom|o|an(?=[\\({^])"
        r"|ext(?=\{)|extbf(?=\{)|extit(?=\{)|extrm(?=\{)",
    ),
    "\n": ("n", r"eq|abla|mid|otin|leq|geq"),
    "\r": ("r", r"ight|ightarrow|angle|floor|ceil|ho"),
}
_SWALLOWED = re.compile(
    "|".join(
        f"(?P<{letter}>{re.escape(char)})(?={rest})(?!(?:{rest})[A-Za-z])"
        for char, (letter, rest) in _RESTS.items()
    )
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# The same commands with nothing left of their beginning at all. Only rests that are no words and no
# variables.
_HEADLESS = re.compile(
    r"(?<![A-Za-z\\\x00-\x09\x0b-\x1f])(?:(?P<f>rac)(?=\s*\{)|(?P<t>riangle|imes|heta|frac(?=\{))"
    r"|(?P<b>inom(?=\{)|egin(?=\{)|oxed(?=\{))|(?P<s>qrt)(?=[\[{]))(?![A-Za-z])"
)
_OVER_ESCAPED = re.compile(
    r"(?<!\\)\\\\(?=(?:frac|sqrt|triangle|times|cdot|angle|text|overline|left|right|leq?|geq?|ldots|circ|theta|alpha|pi"
    r"|sin|cos|log|binom|mathrm)(?![A-Za-z]))"
)
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")


def _control_characters(text: str) -> list[Finding]:
    findings = []
    swallowed = {match.start() for match in _SWALLOWED.finditer(text)}
    for at in sorted(swallowed | {match.start() for match in _CONTROL.finditer(text)}):
        known = at in swallowed
        what = "left of a LaTeX command" if known else "no LaTeX command can be told from it"
        findings.append(
            Finding(
                "control-character", f"U+{ord(text[at]):04X} in {_shown(text, at)}: {what}", True
            )
        )
    return findings


def _headless(text: str) -> list[Finding]:
    return [
        Finding("broken-latex", f"{_shown(text, m.start())}", True)
        for m in _HEADLESS.finditer(text)
    ]


def _over_escaped(text: str) -> list[Finding]:
    match = _OVER_ESCAPED.search(text)
    return [Finding("over-escaped", _shown(text, match.start()), True)] if match else []


def _characters(text: str) -> list[Finding]:
    findings = []
    if match := _INVISIBLE.search(text):
        findings.append(
            Finding(
                "invisible-character",
                f"U+{ord(match[0]):04X} in {_shown(text, match.start())}",
                True,
            )
        )
    if match := re.search("[\ufffd\ud800-\udfff]", text):
        findings.append(
            Finding(
                "bad-character", f"U+{ord(match[0]):04X} in {_shown(text, match.start())}", False
            )
        )
    if match := _MOJIBAKE.search(text):
        findings.append(Finding("mojibake", _shown(text, match.start()), _demojibake(text) != text))
    return findings


_MOJIBAKE = re.compile(
    "\u00e2\u20ac[\u0080-\u00ff\u2000-\u2fff\u0152-\u0192\u02c6\u02dc]|\u00c2[\u00a0-\u00bf]|\u00c3[\u0080-\u00bf]"
)


def _demojibake(text: str) -> str:
    if not _MOJIBAKE.search(text):
        return text
    try:
        return text.encode("cp1252").decode("utf-8")
    except UnicodeError:
        return text


# --- leftovers of web pages, prompts and chats ---

_TAG = re.compile(
    r"</[a-z]{1,10}\d?>|<(?:br|hr)\s*/?>"
    r"|<(?:img|div|span|sup|sub|em|strong|table|tr|td|ul|ol|li|code|pre|center|font|h\d)"
    r"(?:\s+[a-z-]+=[^<>]{0,300})?\s*/?>",
    re.I,
)
_ENTITY = re.compile(
    r"&(?:nbsp|lt|gt|amp|quot|le|ge|times|ndash|mdash|minus|deg|pi|#\d{1,6}|#x[0-9a-f]{1,5});", re.I
)


def _html(text: str) -> list[Finding]:
    match = _TAG.search(text) or _ENTITY.search(text)
    return [Finding("html", f"{match[0]!r}", True)] if match else []


def _without_html(text: str) -> str:
    if not _html(text):
        return text
    closed = {tag.lower() for tag in re.findall(r"</([a-z]{1,10}\d?)>", text, flags=re.I)}
    text = re.sub(r"<sup>([^<>]*)</sup>", r"^{\1}", text, flags=re.I)
    text = re.sub(r"<sub>([^<>]*)</sub>", r"_{\1}", text, flags=re.I)
    text = re.sub(r"<(?:br|hr)\s*/?>|</(?:p|div|li|tr)>", "\n", text, flags=re.I)
    text = _TAG.sub("", text)
    for tag in sorted(closed & {"p", "b", "i", "u", "a", "s"}):
        text = re.sub(rf"<{tag}(?:\s+[a-z-]+=[^<>]{{0,300}})?>", "", text, flags=re.I)
    return html.unescape(text).replace("\u00a0", " ").strip()


_TEMPLATE = re.compile(
    r"<\|(?:im_start|im_end|im_sep|system|user|assistant|end|eot_id|start_header_id|end_header_id|begin_of_text"
    r"|endoftext|end_of_text)\|>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>|<\uff5c[^<>]{1,40}\uff5c>"
    r"|^### (?:Instruction|Response):|^(?:Human|Assistant): ",
    re.M,
)
_USER_TURNS = tuple(
    re.compile(pattern, re.S)
    for pattern in (
        r"<\|im_start\|>user\n(.*?)<\|im_end\|>",
        r"<start_of_turn>user\n(.*?)<end_of_turn>",
        r"<\|start_header_id\|>user<\|end_header_id\|>\s*(.*?)<\|eot_id\|>",
        r"\[INST\](?:\s*<<SYS>>.*?<</SYS>>)?(.*?)\[/INST\]",
        r"<\|user\|>(.*?)(?:<\|end\|>|<\|assistant\|>|\Z)",
        r"<\uff5cUser\uff5c>(.*?)(?:<\uff5cAssistant\uff5c>|\Z)",
        r"### Instruction:(.*?)### Response:",
        r"^Human: (.*?)(?:^Assistant:|\nAssistant:|\Z)",
    )
)


def _user_turn(text: str) -> str | None:
    """The user's words inside a chat template, if exactly one turn of one template can be told."""
    # no single turn; and the patterns below would be slow on it
    if len(_TEMPLATE.findall(text)) > 20:
        return None
    turns = [turn for pattern in _USER_TURNS for turn in pattern.findall(text)]
    return turns[0].strip() if len(turns) == 1 and not _TEMPLATE.search(turns[0]) else None


def _chat_template(text: str) -> list[Finding]:
    match = _TEMPLATE.search(text)
    return (
        [Finding("chat-template", f"{match[0]!r}", _user_turn(text) is not None)] if match else []
    )


def _without_template(text: str) -> str:
    return (_user_turn(text) or text) if _TEMPLATE.search(text) else text


_INSTRUCTION = re.compile(
    r"(?:reason|think|solve|work)[^.\n]{0,60}step[- ]by[- ]step"
    r"|(?:within|in|inside|into|using) (?:a )?[$]?\\+boxed|\\boxed\s*\{\s*\}"
    r"|(?:output|give|display|put|write|enclose|state|provide|present|return) "
    r"(?:only )?(?:the|your) (?:final )?(?:numerical )?answer\b"
    r"|the answer is an integer (?:consisting|between|from)|take your best guess",
    re.I,
)
# What such instructions go on to say.
_ASIDE = re.compile(
    r"^(?:for example, (?:if )?the answer|remember to have|if you cannot determine)", re.I
)
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+|\n+")


def _instruction(text: str) -> list[Finding]:
    match = _INSTRUCTION.search(text)
    return (
        [
            Finding(
                "instruction", f"{match[0]!r}", not _INSTRUCTION.search(_without_instruction(text))
            )
        ]
        if match
        else []
    )


def _without_instruction(text: str) -> str:
    """`text` without the sentences at its end, and the lines at its beginning, that instruct a
    model.
    """
    if not _INSTRUCTION.search(text):
        return text
    end = kept = len(text)
    for cut in reversed(list(_SENTENCE_END.finditer(text))):
        last = text[cut.end() : end]
        if last.strip() and not (_INSTRUCTION.search(last) or _ASIDE.search(last)):
            break
        end = cut.start()
        kept = end if last.strip() else kept
    text = text[:kept].rstrip() if kept < len(text) else text
    first, newline, rest = text.partition("\n")
    return rest.strip() if newline and rest.strip() and _INSTRUCTION.search(first) else text


_SPEAKS_OF_FIGURE = re.compile(
    r"\bas shown\b|\bshown (?:below|above|in the)\b"
    r"|\b(?:figure|diagram|picture) (?:below|above|shown)\b"
    r"|\b(?:in|see) the (?:figure|diagram|picture)\b",
    re.I,
)
_FIGURE = re.compile(
    r"\[asy\]|tikzpicture|\\begin\{asy\}|includegraphics|!\[|<img\b|begin\{array\}|begin\{tabular\}",
    re.I,
)


def _figure(text: str) -> list[Finding]:
    match = _SPEAKS_OF_FIGURE.search(text)
    return (
        [Finding("figure-missing", f"{match[0]!r}", False)]
        if match and not _FIGURE.search(text)
        else []
    )


def _balance(text: str) -> list[Finding]:
    findings = []
    plain = re.sub(r"\\[\\${}]", "", text)
    if plain.count("$") % 2:
        findings.append(Finding("unbalanced-dollars", f"{plain.count('$')} of them", False))
    if plain.count("{") != plain.count("}"):
        findings.append(
            Finding(
                "unbalanced-braces",
                f"{plain.count('{')} opening, {plain.count('}')} closing",
                False,
            )
        )
    return findings


# --- answers and solutions inside the text ---

_SOLUTION = re.compile(r"^[*# ]*(?:solution|proof|explanation)\s*\d*[*\s]*(?::|\.|$)", re.I | re.M)


def _solution(text: str) -> list[Finding]:
    match = _SOLUTION.search(text)
    return (
        [Finding("solution-in-text", f"{match[0].strip()!r}", False)]
        if match and match.start() > 0
        else []
    )


def _gold_patterns(gold: int) -> list[re.Pattern[str]]:
    number = rf"0*{gold}(?![\d]|\.\d)"
    return [
        re.compile(rf"\\f?boxed\s*\{{\s*{number}\s*\}}"),
        re.compile(rf"####\s*{number}"),
        re.compile(
            rf"(?:\b(?:so|thus|hence|therefore),? )?(?:\bthe )?(?:\b(?:final|correct) )?"
            rf"\banswer\b[*_]*\s*(?:is|:|=)[*_]*\s*[*$\\({{\s]*{number}",
            re.I,
        ),
        re.compile(
            rf"\b[a-z]\s*(?:\+\s*[a-z]\s*){{1,9}}=\s*(?:\\boldsymbol\{{|\\mathbf\{{)?{number}", re.I
        ),
        # A number of its own after the last sentence, or after a figure.
        re.compile(rf"(?<=[.?!$\])}}])\s+[*$(]*{number}[*$).]*\s*\Z"),
    ]


def _give_away(text: str, gold: int) -> list[Finding]:
    for pattern in _gold_patterns(gold):
        match = pattern.search(text)
        if match is not None:
            return [
                Finding(
                    "answer-in-text",
                    _shown(text, match.start(), 24),
                    _without_give_away(text, gold) != text,
                )
            ]
    return []


def _without_give_away(text: str, gold: int) -> str:
    """`text` without an answer that stands by itself at the very end; one in the middle is not cut
    out.
    """
    for pattern in _gold_patterns(gold):
        for match in pattern.finditer(text):
            if not text[match.end() :].strip(" \n$.*)}"):
                start = match.start()
                # The words that led to it: "Answer:" stands in the match, "$" and "**" before it do
                # not.
                return text[:start].rstrip().removesuffix("**").rstrip() if start else text
    return text


_DETECTORS: tuple[Callable[[str], list[Finding]], ...] = (
    _control_characters,
    _headless,
    _over_escaped,
    _characters,
    _html,
    _chat_template,
    _instruction,
    _solution,
    _figure,
    _balance,
)


def _restore(match: re.Match[str]) -> str:
    return "\\" + (match.lastgroup or "")


_REPAIRS: tuple[tuple[str, Callable[[str], str]], ...] = (
    (
        "put back LaTeX commands that were control characters",
        lambda text: _SWALLOWED.sub(_restore, text),
    ),
    ("took out control characters", lambda text: _CONTROL.sub("", text)),
    (
        "put back the first letters of LaTeX commands",
        lambda text: _HEADLESS.sub(lambda m: f"{_restore(m)}{m[0]}", text),
    ),
    (
        "halved doubled backslashes before LaTeX commands",
        lambda text: _OVER_ESCAPED.sub(r"\\", text),
    ),
    ("took out invisible characters", lambda text: _INVISIBLE.sub("", text)),
    ("read the text again as UTF-8", _demojibake),
    ("kept the user's turn of the chat template", _without_template),
    ("turned HTML into plain text", _without_html),
    ("took out the instruction to the model", _without_instruction),
)
