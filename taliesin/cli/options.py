"""Options that mean the same in every verb, and the question before something is destroyed."""

from __future__ import annotations

import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from taliesin.errors import UsageError

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
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Needed where stdin is not a terminal.")]


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
        "--model", "-m", help="A name of `taliesin model list` or the path of a GGUF file.", show_default=False
    ),
]
GpuLayers = Annotated[int, typer.Option("--gpu-layers", help="Layers on the GPU; -1 for all.")]
Threads = Annotated[
    int | None, typer.Option("--threads", help="CPU threads; part of the recipe.", min=1, show_default=False)
]
Ubatch = Annotated[
    int | None, typer.Option("--ubatch", help="Tokens computed at once; part of the recipe.", min=1, show_default=False)
]


class EngineName(StrEnum):
    """What computes: llama.cpp in this process, or a llama-server."""

    EMBEDDED = "embedded"
    SERVER = "server"


EngineChoice = Annotated[
    EngineName, typer.Option("--engine", help="server: a llama-server, started for the command if none runs.")
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
    typer.Option("--server-url", help="A llama-server that runs; its options cannot be known.", show_default=False),
]
SlotFolder = Annotated[
    Path | None,
    typer.Option("--slot-save-path", help="That server's --slot-save-path, on this machine.", show_default=False),
]
ServerKey = Annotated[
    str | None,
    typer.Option("--server-key", envvar="TALIESIN_SERVER_KEY", help="That server's API key.", show_default=False),
]


class Reach(NamedTuple):
    """How a command comes to its llama-server."""

    binary: Path | None = None
    url: str | None = None
    slot_folder: Path | None = None
    key: str | None = None


def read_text(path: str) -> str:
    """The text of a file, or of stdin for `-`.

    Raises:
        UsageError: no such file, or not UTF-8.
    """
    try:
        return sys.stdin.buffer.read().decode("utf-8") if path == "-" else Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError("the text cannot be read", got=error.strerror, where=path) from error
    except UnicodeDecodeError as error:
        raise UsageError("the text is not UTF-8", got=f"byte {error.start}: {error.reason}", where=path) from error


ResidentBudget = Annotated[
    str, typer.Option("--resident", help="What blocks in contexts of their own may take: 2GB. 0: none.")
]
MemoryBudget = Annotated[
    str, typer.Option("--memory", help="What states in memory may take (page-locked with a GPU): 8GB. 0: none.")
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
