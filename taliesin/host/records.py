"""Records: JSON and YAML values as typed structs, with one error for a field that is not as the
type says.

    class Arm(Record):
        SCHEMA = "galahad.arm/1"
        name: str
        seed: int = 0

    arm = decode(raw, Arm, what="the arm", where=path)

Promises: a field of another kind, one too many and one missing are each one error that names the
field, what was expected, what came and the file; a key given twice, NaN and an infinity are
refused; so is text that is not UTF-8. A `Record` that has a `SCHEMA` is written to docs/schemas/ by
`scripts/make_docs.py`, so that every format has one definition.
Deliberately does not know: any format. Rules between fields belong into `__post_init__` of the
struct, as a ValueError whose text says what was expected.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, TypeVar, Union, dataclass_transform, get_args, get_origin

import msgspec

from taliesin.errors import FormatError, ToolkitError

T = TypeVar("T")

# What msgspec says: "Expected `int`, got `str` - at `$.seed`", the place left out at the top, and
# "at `key` in `$.names`" for a key of a mapping.
_PLACE = re.compile(r" - at (?P<key>`key` in )?`(?P<place>[^`]*)`$", re.DOTALL)
_EXPECTED = re.compile(r"Expected `(?P<expected>.*?)`(?:, got `(?P<got>.*?)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*)`$", re.DOTALL)
_GOT_CHARS = 80


# For the type checker: a record's own records are frozen and keyword-only too.
@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A struct that is read from a file or a server. `SCHEMA` names its format and version, such as
    "galahad.arm/1"; a part of another record has none.
    """

    SCHEMA: ClassVar[str] = ""


def parse(
    raw: bytes, *, what: str, where: object = None, error: type[ToolkitError] = FormatError
) -> Any:
    """The JSON value that `raw` encodes, as plain Python objects.

    Raises:
        error: not UTF-8, not JSON, a key twice, NaN or an infinity, a lone surrogate, nested too
            deeply.
    """
    try:
        text = raw.decode()
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
        if "\\u" in text:  # only an escape can bring a lone surrogate in
            json.dumps(value, ensure_ascii=False).encode()
    except ValueError as fault:
        raise error(f"{what} is not valid JSON", got=str(fault), where=where) from fault
    except RecursionError as fault:
        raise error(f"{what} is nested too deeply", where=where) from fault
    return value


def convert(
    value: Any,
    kind: type[T],
    *,
    what: str,
    where: object = None,
    error: type[ToolkitError] = FormatError,
    hint: str | None = None,
) -> T:
    """`value`, plain objects from JSON or YAML, as a `kind`.

    Raises:
        error: with the field's path, what was expected and what came.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as fault:
        raise _explained(
            fault, value, kind, what=what, where=where, error=error, hint=hint
        ) from fault


def decode(
    raw: bytes,
    kind: type[T],
    *,
    what: str,
    where: object = None,
    error: type[ToolkitError] = FormatError,
    hint: str | None = None,
) -> T:
    """The `kind` that the JSON of `raw` says. Raises as `parse` and `convert`."""
    return convert(
        parse(raw, what=what, where=where, error=error),
        kind,
        what=what,
        where=where,
        error=error,
        hint=hint,
    )


def read(
    path: Path,
    kind: type[T],
    *,
    what: str,
    error: type[ToolkitError] = FormatError,
    hint: str | None = None,
) -> T:
    """The `kind` in the file at `path`. Raises as `decode`; OSError as it comes."""
    return decode(path.read_bytes(), kind, what=what, where=path, error=error, hint=hint)


def faults(value: Any, kind: Any, place: str = "") -> list[str]:
    """Every fault of `value`, plain objects, as a `kind`, one line each with the field's place: for
    files that people write by hand. None where `convert` takes it.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin in (UnionType, Union) and value is not None:
        kind = next(arg for arg in args if arg is not type(None))
        origin, args = get_origin(kind), get_args(kind)
    label = f"{place}: " if place else ""
    if isinstance(kind, type) and issubclass(kind, Record):
        if not isinstance(value, dict):
            return [f"{label}expected a mapping, got {type(value).__name__}"]
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        found = [
            f"{label}{key} is missing"
            for key, field in fields.items()
            if field.required and key not in value
        ]
        found += [f"{label}{key} is not a known key" for key in value if key not in fields]
        for key, field in fields.items():
            if key in value:
                found += faults(value[key], field.type, f"{label}{key}")
        if found:
            return found
    elif origin is tuple:
        if not isinstance(value, list):
            return [f"{label}expected a list, got {type(value).__name__}"]
        return [
            line
            for number, item in enumerate(value, 1)
            for line in faults(item, args[0], f"{place} {number}".strip())
        ]
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as fault:
        expected = _in_words(kind, "") or str(fault).removeprefix("Expected ").replace("`", "")
        return [f"{label}expected {expected}, got {value!r}"]
    return []


def plain(record: Any) -> Any:
    """A record as dicts, lists, strings and numbers, ready for JSON."""
    return msgspec.to_builtins(record)


def schema(kind: type[Record]) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a record."""
    made = msgspec.json.schema(kind)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": kind.SCHEMA,
        **made,
    }


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice!r} is given twice")
    return fields


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _explained(
    fault: msgspec.ValidationError,
    value: Any,
    kind: Any,
    *,
    what: str,
    where: object,
    error: type[ToolkitError],
    hint: str | None,
) -> ToolkitError:
    """msgspec's complaint in the toolkit's form: what it is about, expected, got, where."""
    text = str(fault)
    found = _PLACE.search(text)
    place = found["place"].removeprefix("$").removeprefix(".") if found else ""
    text = text[: found.start()] if found else text
    if missing := _MISSING.match(text):
        field = f"{place}.{missing['field']}".removeprefix(".")
        return error(f"{what} has no field {field}", where=where, hint=hint)
    if unknown := _UNKNOWN.match(text):
        field = f"{place}.{unknown['field']}".removeprefix(".")
        return error(
            f"{what} has a field that its format does not have", got=field, where=where, hint=hint
        )
    about = f"field {place} of {what}" if place else what
    if found and found["key"]:
        return error(
            f"a key of {about} is not as its format says", expected=text, where=where, hint=hint
        )
    kinds = _EXPECTED.match(text)
    if kinds:
        got = _at(value, place)
        if got is None and kinds["got"] != "null":
            got = kinds["got"]
        expected: object = kinds["expected"].replace("`", "")
    else:  # a rule of the struct's own, a bound or a choice
        said = text.replace("`", "").removeprefix("Expected ")
        got, expected = _at(value, place), _in_words(kind, place) or said
    shown = json.dumps(got, ensure_ascii=False, default=str)
    if len(shown) > _GOT_CHARS:
        shown = shown[: _GOT_CHARS - 1] + "…"
    return error(
        f"{about} is not as its format says",
        expected=expected,
        got=shown,
        where=where,
        hint=hint,
    )


def _steps(place: str) -> list[tuple[str, str]]:
    """A path of msgspec's such as `a.b[2].c` as keys and indices."""
    return re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", place)


def _in_words(kind: Any, place: str) -> str | None:
    """What the type expects at a path: its description, or the values that it may have."""
    from msgspec import inspect  # not at the top: only a fault needs it

    def branches(kind: inspect.Type) -> list[inspect.Type]:
        """A type, what it annotates, and the members of a union."""
        if isinstance(kind, inspect.Metadata):
            return [kind, *branches(kind.type)]
        if isinstance(kind, inspect.UnionType):
            return [branch for member in kind.types for branch in branches(member)]
        return [kind]

    kinds = branches(inspect.type_info(kind))
    for key, _index in _steps(place):
        inner: list[inspect.Type] = []
        for one in kinds:
            if isinstance(one, inspect.StructType):
                inner += [field.type for field in one.fields if field.encode_name == key]
            elif isinstance(one, inspect.DictType):
                inner.append(one.value_type)
            elif isinstance(one, inspect.ListType | inspect.SetType | inspect.VarTupleType):
                inner.append(one.item_type)
        kinds = [branch for one in inner for branch in branches(one)]
    for one in kinds:
        if isinstance(one, inspect.Metadata):
            said = (one.extra_json_schema or {}).get("description")
            if said is not None:
                return str(said)
    values = [v for one in kinds if isinstance(one, inspect.LiteralType) for v in one.values]
    return " or ".join(map(str, values)) or None


def _at(value: Any, place: str) -> Any:
    """What stands at a path of msgspec's such as `a.b[2].c`; None if it cannot be followed."""
    for key, index in _steps(place):
        try:
            value = value[int(index)] if index else value[key]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return value
