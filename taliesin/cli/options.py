"""What the verbs of both commands share: options that mean the same everywhere and what they stand
for, the application around the verbs, and the question before something is destroyed.

Nothing here imports llama_cpp, numpy or scipy at module level.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer
import typer.core

from taliesin import __version__
from taliesin.errors import ModelError, UsageError
from taliesin.host import console
from taliesin.host.machine import usable_cores

if TYPE_CHECKING:
    from taliesin.engine.llama import Settings

R = TypeVar("R")


def _show_version(wanted: bool) -> None:
    if wanted:
        console.out(__version__)
        raise typer.Exit


def _refuse_what_is_no_number(parameter: Any) -> None:
    """Have a parameter of Typer's refuse NaN and infinity, which a range lets through."""
    then = parameter.callback

    def check(context: Any, parameter: Any, value: Any) -> Any:
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(one, float) and not math.isfinite(one):
                raise typer.BadParameter(f"{one} is not a finite number.", context, parameter)
        return value if then is None else then(context, parameter, value)

    parameter.callback = check


def _floats(command: Any) -> Iterator[Any]:
    """The parameters of a command and of all verbs under it that take numbers with a fraction."""
    yield from (one for one in command.params if one.type.name.startswith("float"))
    for verb in getattr(command, "commands", {}).values():
        yield from _floats(verb)


class _Application(typer.core.TyperGroup):
    """All verbs of a command, once Typer has built them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for parameter in _floats(self):
            _refuse_what_is_no_number(parameter)


def application(summary: str) -> typer.Typer:
    """A command without verbs yet: `--quiet`, `--version`, only finite numbers in every verb, and
    errors left to `console.run`.
    """
    app = typer.Typer(
        cls=_Application,
        help=summary,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def common(
        quiet: Annotated[
            bool, typer.Option("--quiet", "-q", help="No notes and no progress on stderr.")
        ] = False,
        _version: Annotated[
            bool,
            typer.Option(
                "--version", callback=_show_version, is_eager=True, help="Print the version."
            ),
        ] = False,
    ) -> None:
        console.set_quiet(quiet)

    return app


TextFile = Annotated[str, typer.Argument(help="A text file, or - for stdin.", show_default=False)]
Raw = Annotated[bool, typer.Option("--raw", help="No chat template around the text.")]
BlockName = Annotated[
    str, typer.Argument(help="A name, or the first 8 or more digits of an id.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
LibraryPath = Annotated[
    Path | None,
    typer.Option(
        "--library",
        envvar="TALIESIN_LIBRARY",
        help="Folder of the blocks; the user's data folder if not given.",
        show_default=False,
    ),
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask. Needed where stdin is not a terminal.")
]


def confirm(question: str, yes: bool) -> bool:
    """Whether to go on: `--yes`, or the answer on the terminal.

    Raises:
        UsageError: there is no terminal to ask on.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("not done without a confirmation", hint="--yes")
    return typer.confirm(question, err=True)


Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A name of `taliesin model list` or the path of a GGUF file.",
        show_default=False,
    ),
]
GpuLayers = Annotated[int, typer.Option("--gpu-layers", help="Layers on the GPU; -1 for all.")]
Threads = Annotated[
    int | None,
    typer.Option("--threads", help="CPU threads; part of the recipe.", min=1, show_default=False),
]
Ubatch = Annotated[
    int | None,
    typer.Option(
        "--ubatch", help="Tokens computed at once; part of the recipe.", min=1, show_default=False
    ),
]

# beyond, decoding on a CPU rarely gains, and blocks stay usable on smaller machines
_MOST_THREADS = 8


def default_settings(threads: int | None, ubatch: int | None) -> Settings:
    """Settings of a new block on this machine."""
    from taliesin.engine.llama import Settings

    settings = Settings(n_threads=threads or min(usable_cores(), _MOST_THREADS))
    return replace(settings, n_ubatch=ubatch or settings.n_ubatch)


def model_for(recipe: Mapping[str, Any], given: str | None) -> str:
    """The model to load for a block: the one named, else the catalogue's with the recipe's hash.

    Raises:
        ModelError: no name was given, and the catalogue does not know the block's model.
    """
    from taliesin.models import resolve as models

    if given is not None:
        return given
    digest = recipe.get("model_sha256")
    known = next((entry for entry in models.catalogue() if entry.sha256 == digest), None)
    if known is None:
        raise ModelError(
            "the block's model is not in the catalogue",
            expected=f"SHA-256 {digest}",
            hint="--model PATH of its GGUF file",
        )
    return known.name


class KvType(StrEnum):
    """Cache types of llama.cpp."""

    F16 = "f16"
    F32 = "f32"
    BF16 = "bf16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_1 = "q4_1"
    Q5_0 = "q5_0"
    Q5_1 = "q5_1"


TypeK = Annotated[KvType, typer.Option("--type-k", help="Type of cached K.")]
TypeV = Annotated[KvType, typer.Option("--type-v", help="Type of cached V.")]


class Policy(StrEnum):
    """When a block's payload is hashed."""

    ONCE = "once"
    ALWAYS = "always"
    NEVER = "never"


class EngineName(StrEnum):
    """What computes: llama.cpp in this process, or a llama-server."""

    EMBEDDED = "embedded"
    SERVER = "server"


EngineChoice = Annotated[
    EngineName,
    typer.Option("--engine", help="server: a llama-server, started for the command if none runs."),
]
ServerBin = Annotated[
    Path | None,
    typer.Option(
        "--server-bin",
        help="llama-server to run; TALIESIN_LLAMA_SERVER, else what make server built.",
        show_default=False,
    ),
]
ServerUrl = Annotated[
    str | None,
    typer.Option(
        "--server-url",
        help="A llama-server that runs; its options cannot be known.",
        show_default=False,
    ),
]
SlotFolder = Annotated[
    Path | None,
    typer.Option(
        "--slot-save-path",
        help="That server's --slot-save-path, on this machine.",
        show_default=False,
    ),
]
ServerKey = Annotated[
    str | None,
    typer.Option(
        "--server-key",
        envvar="TALIESIN_SERVER_KEY",
        help="That server's API key.",
        show_default=False,
    ),
]


class Reach(NamedTuple):
    """How a command comes to its llama-server: a group of options for a `grouped` command."""

    binary: ServerBin = None
    url: ServerUrl = None
    slot_folder: SlotFolder = None
    key: ServerKey = None


def grouped(command: Callable[..., R]) -> Callable[..., R]:
    """`command` as Typer must see it: each parameter whose type is a NamedTuple of options in place
    of those options.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if hasattr(kind, "_field_defaults")}
    shown: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if (group := groups.get(parameter.name)) is None:
            shown.append(parameter.replace(annotation=hints[parameter.name]))
            continue
        options = get_type_hints(group, include_extras=True)
        shown += [
            parameter.replace(name=n, annotation=options[n], default=group._field_defaults[n])
            for n in options
        ]

    @functools.wraps(command)
    def ungrouped(**given: Any) -> R:
        values = {
            name: kind(*(given.pop(field) for field in kind._fields))
            for name, kind in groups.items()
        }
        return command(**given, **values)

    ungrouped.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    ungrouped.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return ungrouped


def read_text(path: str) -> str:
    """The text of a file, or of stdin for `-`.

    Raises:
        UsageError: no such file, or not UTF-8.
    """
    try:
        return (
            sys.stdin.buffer.read().decode("utf-8")
            if path == "-"
            else Path(path).read_bytes().decode("utf-8")
        )
    except OSError as error:
        raise UsageError("the text cannot be read", got=error.strerror, where=path) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            "the text is not UTF-8", got=f"byte {error.start}: {error.reason}", where=path
        ) from error


ResidentBudget = Annotated[
    str,
    typer.Option("--resident", help="What blocks in contexts of their own may take: 2GB. 0: none."),
]
MemoryBudget = Annotated[
    str,
    typer.Option(
        "--memory", help="What states in memory may take (page-locked with a GPU): 8GB. 0: none."
    ),
]

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)}
_UNITS |= {f"{prefix}IB": 1024**power for power, prefix in enumerate("KMGT", 1)}


def parse_bytes(size: str) -> int:
    """Bytes of a size such as `500MB`, `10GB` or `2GiB`.

    Raises:
        UsageError: it is no size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
    if match is None or match[2].upper() not in _UNITS:
        raise UsageError("not a size", expected="for example 500MB, 10GB or 2GiB", got=size)
    return int(float(match[1]) * _UNITS[match[2].upper()])
