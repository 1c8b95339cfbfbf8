"""What a command prints and where: stdout is data, stderr is everything else.

The only module that asks whether a stream is a terminal, and the only one that uses rich. Data
never goes through rich: a piped `rich.Console.print` wraps at 80 columns and would break JSON.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from taliesin.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, StoreFull, ToolkitError

if TYPE_CHECKING:
    import typer

_quiet = False


def set_quiet(quiet: bool) -> None:
    """Silence `note` and progress (not warnings and errors); for cron."""
    global _quiet
    _quiet = quiet


def out(line: str = "") -> None:
    """One line of data on stdout."""
    _write(line + "\n")


class _ReaderGone(Exception):
    """Whoever read stdout went away. Of a BrokenPipeError Typer would make exit code 1, a
    crash's.
    """


def _write(text: str) -> None:
    """`text` on stdout. Raises StoreFull where it cannot be stored."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError as error:
        raise _ReaderGone from error
    except OSError as error:
        raise _unstored(error) from error


def _unstored(error: OSError) -> StoreFull:
    return StoreFull("the output could not be written", got=error.strerror, where="stdout")


def _discard_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not raise again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _finite(value: Any) -> Any:
    """`value` with NaN and infinities as None: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


def json_line(value: Any) -> str:
    """`value` as one line of strict JSON (no NaN); numpy scalars and paths become numbers and
    strings.
    """

    def plain(item: Any) -> Any:
        return item.item() if hasattr(item, "item") else str(item)

    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=plain)


def emit_json(schema: str, fields: dict[str, Any]) -> None:
    """One JSON object on stdout, its first field `schema` (for example `taliesin.verify/1`)."""
    _write(json_line({"schema": schema, **fields}) + "\n")


def note(message: str) -> None:
    """A line for the reader on stderr, silent with `--quiet`."""
    if not _quiet:
        print(message, file=sys.stderr, flush=True)


def warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An aligned plain-text table; numbers to the right, everything else to the left."""
    # By columns: a listing of 10,000 lines takes half the time that it does by cells.
    columns = [list(map(str, column)) for column in zip(*rows, strict=True)] or [
        [] for _ in headers
    ]
    padded = []
    for header, cells in zip(headers, columns, strict=True):
        width = max(map(len, [header, *cells]))
        numeric = bool(cells) and all(
            c.replace(".", "", 1).lstrip("-").isdigit() or c in ("", "-") for c in cells
        )
        padded.append([c.rjust(width) if numeric else c.ljust(width) for c in [header, *cells]])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def markdown_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The same table for a Markdown page."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def count(n: int, noun: str) -> str:
    """`1 block`, `2 blocks`."""
    return (
        f"{n} {noun}" if n == 1 else f"{n} {noun[:-1]}ies" if noun.endswith("y") else f"{n} {noun}s"
    )


def human_bytes(n: int) -> str:
    """`n` bytes with a decimal unit: `14.2 MB`."""
    value = float(n)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def stderr_is_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class Advance(Protocol):
    def __call__(self, amount: float, detail: str | None = None, /) -> None:
        """`amount` more is done; `detail` replaces the words behind the count."""


@contextmanager
def progress(label: str, total: float, unit: str) -> Iterator[Advance]:
    """Yield `advance`. A bar with rate and time left on a terminal; nothing elsewhere; `unit`
    "bytes" is scaled.
    """
    if _quiet or not stderr_is_terminal():
        yield lambda _amount, _detail=None, /: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    if unit == "bytes":
        columns = [DownloadColumn(), TransferSpeedColumn()]
    else:
        columns = [MofNCompleteColumn(), TextColumn(unit), TextColumn("{task.fields[rate]}")]
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeRemainingColumn(),
        console=Console(file=sys.stderr, no_color=bool(os.environ.get("NO_COLOR"))),
        transient=True,
    )
    with bar:
        task = bar.add_task(label, total=total, rate="")

        def advance(amount: float, detail: str | None = None, /) -> None:
            speed = bar.tasks[0].speed
            rate = f"{speed:.1f} {unit}/s" if speed else ""
            bar.update(task, advance=amount, rate=rate if detail is None else detail)

        yield advance


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unstored(error) from error


def _terminate(_signum: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)


def report_error(error: ToolkitError, as_json: bool) -> None:
    """The error on stderr: one JSON line with `--json`, else the message with expected, got, where
    and what to try.
    """
    print(
        json_line({"error": error.as_dict()}) if as_json else f"error: {error}",
        file=sys.stderr,
        flush=True,
    )


def run(app: typer.Typer, prog_name: str) -> NoReturn:
    """Run a Typer app as a process: map each exception of the tree to its exit code, SIGINT to 130,
    SIGTERM to 143.

    A reader that goes away (`| head`) ends the command quietly, as for any Unix filter.
    """
    import typer

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    as_json = "--json" in sys.argv
    if sys.stdout is None:  # closed by the caller: `>&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        # standalone_mode=False: exceptions come to us, usage errors included.
        result = app(prog_name=prog_name, standalone_mode=False)
        code = result if isinstance(result, int) else 0
        _flush()
    except ToolkitError as error:
        report_error(error, as_json)
        code = error.exit_code
        try:
            _flush()
        except (StoreFull, BrokenPipeError):
            _discard_stdout()
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        code = EXIT_INTERRUPTED
    except typer.Exit as exit_:
        code = exit_.exit_code
    except (BrokenPipeError, _ReaderGone):
        _discard_stdout()
        code = 0
    except Exception as error:
        # click's usage errors, whatever package Typer ships them in
        show = getattr(error, "show", None)
        if show is None or not hasattr(error, "exit_code"):
            raise
        if as_json:
            message = getattr(error, "format_message", error.__str__)()
            print(
                json_line({"error": {"kind": "usage", "exit_code": 2, "message": message}}),
                file=sys.stderr,
            )
        else:
            show()
        code = int(error.exit_code)
    sys.exit(code)
