"""A problem file's bytes as rows of plain fields; the form is told from the content, never from the
name.

JSON, JSON Lines and CSV are read here; Parquet and Arrow (IPC file or stream) through pyarrow, from
the extra `data`.
Limits stand before every allocation: a file, a row count and a decoded size beyond them are
refused, not truncated.

This module does not know what a problem is: it names no field and judges no value.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from galahad.errors import SuiteError

MAX_FILE_BYTES = 64 * 2**20
MAX_DECODED_BYTES = 256 * 2**20
MAX_ROWS = 100_000

Format = Literal["json", "jsonl", "csv", "parquet", "arrow-file", "arrow-stream"]


@dataclass(frozen=True, slots=True)
class Row:
    """One record. `number` counts records from 1; `fields` is None when it could not be read,
    `trouble` says why.

    `repeated` are field names that the record gave more than once (JSON allows it; the last value
    would win silently).
    """

    number: int
    fields: dict[str, Any] | None
    trouble: str | None = None
    repeated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """A file's rows. `sha256` is that of its bytes; `marks` are peculiarities: "bom",
    "no-final-newline".
    """

    name: str
    form: Format
    sha256: str
    rows: tuple[Row, ...]
    marks: tuple[str, ...] = field(default=())


def read(path: Path) -> Table:
    """The rows of `path` (`-` is stdin).

    Raises:
        SuiteError: not readable, too large, or of no form known here.
    """
    data = _bytes(path)
    name = str(path)
    digest = hashlib.sha256(data).hexdigest()
    if not data.strip():
        raise SuiteError("an empty problem file", where=name)
    rows: list[Row]
    if data[:4] == b"PAR1":
        return Table(name, "parquet", digest, tuple(_parquet(data, name)))
    if data[:6] == b"ARROW1":
        return Table(name, "arrow-file", digest, tuple(_arrow(data, name, "arrow-file")))
    if data[:4] == b"\xff\xff\xff\xff":
        return Table(name, "arrow-stream", digest, tuple(_arrow(data, name, "arrow-stream")))
    _refuse_lookalikes(data, name)
    text, marks = _text(data, name)
    form, rows = _text_rows(text, name)
    if form != "json" and not text.endswith("\n"):
        marks.append("no-final-newline")
    if not rows or all(row.fields is None for row in rows):
        raise SuiteError(
            "no row of this file can be read",
            where=name,
            got=rows[0].trouble if rows else "no rows",
            hint=_FORMS,
        )
    return Table(name, form, digest, tuple(rows), tuple(marks))


_FORMS = "give JSON, JSON Lines, CSV with a header, Parquet or Arrow"


def _bytes(path: Path) -> bytes:
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            if path.is_dir():
                raise SuiteError(
                    "a folder where a problem file was expected",
                    where=path,
                    hint="name one file inside it",
                )
            if path.exists() and not path.is_file():
                raise SuiteError("not a regular file", where=path)
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SuiteError("cannot read the problem file", got=error.strerror, where=path) from error
    if len(data) > MAX_FILE_BYTES:
        raise SuiteError(
            "the problem file is too large", expected=f"at most {MAX_FILE_BYTES} bytes", where=path
        )
    return data


def _refuse_lookalikes(data: bytes, name: str) -> None:
    """What people really have instead of a problem file, each with its remedy."""
    head = data[:64].lstrip().lower()
    for prefix, what, hint in (
        (
            b"version https://git-lfs",
            "a Git LFS pointer, not the file itself",
            "fetch it with `git lfs pull`",
        ),
        (
            b"<!doctype html",
            "a web page, not a problem file",
            "download the raw file, not the page about it",
        ),
        (
            b"<html",
            "a web page, not a problem file",
            "download the raw file, not the page about it",
        ),
        (b"\x1f\x8b", "a gzip file", "unpack it first"),
        (b"pk\x03\x04", "a zip file", "unpack it first"),
        (b"\xff\xfe", "UTF-16 text", "convert it with `iconv -f UTF-16 -t UTF-8`"),
        (b"\xfe\xff", "UTF-16 text", "convert it with `iconv -f UTF-16 -t UTF-8`"),
    ):
        if head.startswith(prefix):
            raise SuiteError(what, where=name, hint=hint)


def _text(data: bytes, name: str) -> tuple[str, list[str]]:
    marks = []
    if data.startswith(b"\xef\xbb\xbf"):
        marks.append("bom")
        data = data[3:]
    try:
        return data.decode("utf-8"), marks
    except UnicodeDecodeError as error:
        got = f"byte {data[error.start]:#04x} at offset {error.start}"
        raise SuiteError(
            "not UTF-8 text", got=got, where=name, hint=f"{_FORMS}, as UTF-8"
        ) from error


def _text_rows(text: str, name: str) -> tuple[Format, list[Row]]:
    start = text.lstrip()[:1]
    if start == "[":
        return "json", _json_rows(_one_json(text, name), name)
    if start == "{":
        first = text.lstrip().split("\n", 1)[0]
        fields, _, _ = _json_object(first)
        is_wrapper = fields is not None and text.count("\n") <= 1 and _wrapped(fields) is not None
        if fields is None and _looks_whole(text):
            return "json", _json_rows(_one_json(text, name), name)
        return (
            ("json", _json_rows(fields, name))
            if is_wrapper
            else ("jsonl", list(_jsonl(text, name)))
        )
    return "csv", list(_csv(text, name))


def _looks_whole(text: str) -> bool:
    """Whether the file is one JSON object over several lines, rather than JSON Lines with a bad
    first line.
    """
    fields, _, _ = _json_object(text)
    return fields is not None


def _json_object(text: str) -> tuple[dict[str, Any] | None, str, tuple[str, ...]]:
    """(fields, trouble, repeated names) of a JSON text that should be one object."""
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) < len(items):
            names = [name for name, _ in items]
            repeated.extend(sorted({name for name in names if names.count(name) > 1}))
        return result

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=_no_constant)
    except RecursionError:
        return None, "nested too deeply", ()
    except ValueError as error:
        return None, str(error), ()
    if not isinstance(value, dict):
        return None, f"a JSON {type(value).__name__} where an object was expected", ()
    return value, "", tuple(repeated)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _one_json(text: str, name: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise SuiteError("JSON nested too deeply", where=name) from error
    except ValueError as error:
        raise SuiteError("not JSON", got=error, where=name, hint=_FORMS) from error


_WRAPPERS = ("data", "rows", "examples", "problems", "questions", "test", "train")


def _wrapped(value: dict[str, Any]) -> list[Any] | None:
    """The list of records inside `{"data": [...]}` or the like."""
    lists = [value[name] for name in _WRAPPERS if isinstance(value.get(name), list)]
    return lists[0] if len(lists) == 1 else None


def _json_rows(value: Any, name: str) -> list[Row]:
    records = value if isinstance(value, list) else _wrapped(value) or [value]
    _limit_rows(len(records), name)
    return [
        Row(i, record)
        if isinstance(record, dict)
        else Row(i, None, f"a {type(record).__name__}, not an object")
        for i, record in enumerate(records, start=1)
    ]


def _jsonl(text: str, name: str) -> Iterator[Row]:
    number = 0
    for line in text.split("\n"):  # not splitlines: U+2028 and form feeds belong to the text
        if not line.strip():
            continue
        number += 1
        _limit_rows(number, name)
        fields, trouble, repeated = _json_object(line)
        yield Row(number, fields, trouble or None, repeated)


def _csv(text: str, name: str) -> Iterator[Row]:
    header = text.lstrip().split("\n", 1)[0]
    delimiter = max(",;\t", key=header.count)
    if header.count(delimiter) == 0 or len(header) > 2000:
        raise SuiteError(
            "no problem file of a form known here",
            got=repr(text.lstrip()[:40]),
            where=name,
            hint=_FORMS,
        )
    reader = csv.DictReader(
        io.StringIO(text, newline=""), delimiter=delimiter, restkey="", strict=True
    )
    number = 0
    try:
        for record in reader:
            number += 1
            _limit_rows(number, name)
            cells = len(record) - ("" in record)
            uneven = "" in record or any(value is None for value in record.values())
            yield (
                Row(number, None, f"{cells} cells do not fit the header")
                if uneven
                else Row(number, dict(record))
            )
    except csv.Error as error:
        yield Row(number + 1, None, f"CSV: {error}")


def _limit_rows(count: int, name: str) -> None:
    if count > MAX_ROWS:
        raise SuiteError("too many rows", expected=f"at most {MAX_ROWS}", where=name)


# --- pyarrow ---


def _pyarrow(name: str) -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise SuiteError(
            "Parquet and Arrow files need pyarrow", where=name, hint="pip install 'taliesin[data]'"
        ) from error


def _parquet(data: bytes, name: str) -> list[Row]:
    pyarrow = _pyarrow(name)
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(data))
        metadata = file.metadata
        _limit_rows(metadata.num_rows, name)
        declared = sum(
            metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)
        )
        _limit_decoded(declared, name)
        return _batches(file.iter_batches(batch_size=1024), name)
    except (pyarrow.ArrowException, OSError) as error:
        raise SuiteError("a damaged Parquet file", got=error, where=name) from error


def _arrow(data: bytes, name: str, form: Format) -> list[Row]:
    pyarrow = _pyarrow(name)
    ipc = importlib.import_module("pyarrow.ipc")
    try:
        source = pyarrow.BufferReader(data)
        if form == "arrow-stream":
            return _batches(iter(ipc.open_stream(source)), name)
        file = ipc.open_file(source)
        return _batches((file.get_batch(i) for i in range(file.num_record_batches)), name)
    except (pyarrow.ArrowException, OSError) as error:
        raise SuiteError("a damaged Arrow file", got=error, where=name) from error


def _batches(batches: Iterator[Any], name: str) -> list[Row]:
    rows: list[Row] = []
    decoded = 0
    for batch in batches:
        decoded += batch.nbytes
        _limit_decoded(decoded, name)
        _limit_rows(len(rows) + batch.num_rows, name)
        batch.validate(full=True)
        rows += [Row(len(rows) + i, record) for i, record in enumerate(batch.to_pylist(), start=1)]
    if not rows:
        raise SuiteError("no row in this file", where=name)
    return rows


def _limit_decoded(size: int, name: str) -> None:
    if size > MAX_DECODED_BYTES:
        raise SuiteError(
            "too large when decoded",
            expected=f"at most {MAX_DECODED_BYTES} bytes",
            got=size,
            where=name,
        )
