"""The records of the three files: the plan, its lock, and the record of its run.

Promises: what does not fit is one error with the field; rules between fields are part of the type.
Version 1 of lock and record has no seal, and its record no list of the source that ran; such files
stay readable. Deliberately does not know: whether a hash is right.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from msgspec import Meta

from galahad.measure.canonical import canonical, sha256_of
from taliesin.host import records
from taliesin.host.records import Record

Operator = Literal[">=", ">", "<=", "<", "=="]
Text = Annotated[str, Meta(min_length=1, description="a text that is not empty")]
Word = Annotated[
    str | int | float, Meta(description="a text or a number (quote yes, no, true and false)")
]
Command = Annotated[
    tuple[Word, ...], Meta(min_length=1, description="a command: a list of at least one word")
]
# Exit codes of a command that did what it should: done, a verdict of no, done in part.
DONE = (0, 3, 4)


class Prediction(Record, rename={"source": "from"}):
    """What the number at `field` of the output `source` should be. A field is a dotted path, or a
    share of two, `right / n`.
    """

    statement: Text
    source: Text
    field: Text
    operator: Operator
    value: int | float

    def __post_init__(self) -> None:
        if self.field.count(" / ") > 1:
            raise ValueError(f"a field that is a number or a share of two, not {self.field}")

    @property
    def expected(self) -> str:
        return f"{self.field} {self.operator} {self.value}"


class Plan(Record, kw_only=True):
    """What a person writes. Paths are relative to the plan and stay in its folder; `matrix` is for
    the reader.
    """

    SCHEMA = "galahad.prereg.plan/1"
    title: Annotated[str, Meta(pattern=r"\S", description="a title")]
    files: tuple[Text, ...] = ()
    models: tuple[Text, ...] = ()
    matrix: dict[Any, Any] = {}  # noqa: RUF012
    commands: Annotated[
        tuple[Command, ...], Meta(min_length=1, description="a list of lists of words")
    ]
    outputs: Annotated[tuple[Text, ...], Meta(min_length=1, description="at least one output")]
    predictions: Annotated[
        tuple[Prediction, ...], Meta(min_length=1, description="a prediction that could fail")
    ]

    def __post_init__(self) -> None:
        fault = next(self._faults(), None)
        if fault is not None:
            raise ValueError(fault)

    @property
    def sha256(self) -> str:
        """Of what the plan says, however it is written."""
        return sha256_of(records.plain(self))

    @property
    def words(self) -> list[list[str]]:
        """The commands, as they are run."""
        return [[str(word) for word in command] for command in self.commands]

    def _faults(self) -> Iterator[str]:
        """What was expected, for each rule that is not kept."""
        for place in (*self.files, *self.outputs, *(p.source for p in self.predictions)):
            pure = PurePosixPath(place)
            if pure.is_absolute() or ".." in pure.parts:
                yield f"a path that does not leave the plan's folder, as {place} does"
            if "\n" in place or "\r" in place:
                yield f"a path without a line break, not {place!r}"
        for output in self.outputs:
            if inside := [name for name in self.files if _is_in(output, name)]:
                yield f"other outputs: {output} would change the input {inside[0]}"
        for prediction in self.predictions:
            if not any(_is_in(prediction.source, output) for output in self.outputs):
                yield f"predictions of outputs; {prediction.source} is none"
        if not all(words[0] for words in self.words):
            yield "commands that do not begin with an empty word"
        plain = records.plain(self)
        for text in _texts(plain):
            if odd := [
                c for c in text if unicodedata.category(c) in ("Cc", "Cs") and c not in "\t\n\r"
            ]:
                yield f"texts without a control character such as {odd[0]!a}"
        try:
            canonical(plain)
        except (TypeError, ValueError) as error:
            yield f"values that JSON has (quote dates): {error}"


def _is_in(place: str, folder: str) -> bool:
    return PurePosixPath(place).is_relative_to(PurePosixPath(folder))


def _texts(value: Any) -> Iterator[str]:
    """Every text in it. No program can be given a control character, and a terminal obeys it; tabs
    and line breaks are for scripts in a command.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        parts: Iterable[Any] = value.items() if isinstance(value, dict) else value
        for part in parts:
            yield from _texts(part)


class Lock(Record, omit_defaults=True):
    """The plan and the SHA-256 of everything that it names, by label such as `file a`."""

    SCHEMA = "galahad.prereg.lock/2"
    created: str
    inputs: dict[str, str]
    plan: Plan
    plan_sha256: str
    versions: dict[str, str]
    schema: Literal["galahad.prereg.lock/2", "galahad.prereg.lock/1"]
    seal: str | None = None

    def __post_init__(self) -> None:
        if self.is_sealed != (self.seal is not None):
            raise ValueError("a seal in version 2, and none in version 1")

    @property
    def is_sealed(self) -> bool:
        return self.schema == self.SCHEMA


class Verdict(Record):
    """A prediction and what was measured; `held` is None where there is nothing to measure."""

    statement: str
    expected: str
    value: float | None
    held: bool | None


class RunRecord(Record, omit_defaults=True):
    """What a run came to. `exit_codes`: one for each command that was started, all or up to the
    first that failed; `code`: for each of them the SHA-256 of every source file of ours that it
    imported, None for a program that is not ours; `outputs`: None where there was nothing.
    """

    SCHEMA = "galahad.prereg.record/2"
    lock_sha256: str
    started: str
    finished: str
    exit_codes: tuple[int, ...]
    outputs: dict[str, str | None]
    predictions: tuple[Verdict, ...]
    versions: dict[str, str]
    schema: Literal["galahad.prereg.record/2", "galahad.prereg.record/1"]
    code: tuple[dict[str, str] | None, ...] | None = None
    seal: str | None = None

    def __post_init__(self) -> None:
        if self.is_sealed != (self.seal is not None):
            raise ValueError("a seal in version 2, and none in version 1")
        if self.is_sealed != (self.code is not None):
            raise ValueError("the code that ran in version 2, and none in version 1")
        if self.code is not None and len(self.code) != len(self.exit_codes):
            raise ValueError("the code of each command that has an exit code")
        if any(code not in DONE for code in self.exit_codes[:-1]):
            raise ValueError("exit codes up to the first that failed")

    @property
    def is_sealed(self) -> bool:
        return self.schema == self.SCHEMA
