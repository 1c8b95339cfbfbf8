"""The catalogue of models: what each name stands for, told by size and SHA-256, and where its file
can be had.

Reads data/models.yaml and a file of the user's; refuses one with faults, each named in a line. It
deliberately does not know what is on this machine beyond where a file would lie.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from taliesin.errors import ModelError
from taliesin.host.canonical import is_digest
from taliesin.host.places import data_dir, models_dir

DEFAULT = "smollm2-135m"
SCHEMA = "taliesin.models/1"

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\.gguf")
# Goes to pip's command line: no leading dash, no address, no marker.
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([0-9][A-Za-z0-9.+!]*)")


@dataclass(frozen=True)
class HubFile:
    repo: str
    file: str
    revision: str


@dataclass(frozen=True)
class Part:
    """A member of a wheel; the members of a model's parts, joined in order, are its file."""

    requirement: str
    member: str


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
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML takes the last of two equal keys without a word; here two are a mistake."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _value in node.value:
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"{key.value} is there twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        document = yaml.load(text, Loader)  # a SafeLoader: plain data only
    except yaml.YAMLError as error:
        raise ModelError(
            "the catalogue is not YAML", got=" ".join(str(error).split()), where=path
        ) from error
    if (
        not isinstance(document, dict)
        or document.get("schema") != SCHEMA
        or not isinstance(document.get("models"), dict)
    ):
        raise ModelError(
            "not a catalogue of models", expected=f"schema: {SCHEMA}, models: ...", where=path
        )
    faults: list[str] = []
    entries = [_parsed_entry(name, fields, faults) for name, fields in document["models"].items()]
    faults += [f"{key}: unknown key" for key in document.keys() - {"schema", "models"}]
    files = [entry.file for entry in entries if entry]
    faults += [
        f"{file}: two models have this file"
        for file in sorted({f for f in files if files.count(f) > 1})
    ]
    if faults:
        raise ModelError(
            "the catalogue has faults:\n" + "\n".join(f"  {fault}" for fault in faults), where=path
        )
    return tuple(entry for entry in entries if entry)


_RULES: dict[str, tuple[type, str, Any]] = {
    "file": (str, "a plain file name that ends in .gguf", _FILE.fullmatch),
    "bytes": (int, "a number of bytes above 0", lambda v: v > 0),
    "sha256": (str, "64 hexadecimal digits", is_digest),
    "license": (str, "text", bool),
    "architecture": (str, "text", bool),
    "context_tokens": (int, "a number of tokens above 0", lambda v: v > 0),
    "window_tokens": (int, "a number of tokens, 0 for none", lambda v: v >= 0),
    "chat": (bool, "true or false", lambda _v: True),
    "notes": (str, "text", lambda _v: True),
}
_HUB_RULES: dict[str, tuple[type, str, Any]] = {
    "repo": (
        str,
        "owner/name",
        lambda v: re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", v),
    ),
    "file": (
        str,
        "a file of the repository",
        lambda v: v and not v.startswith("/") and ".." not in v.split("/"),
    ),
    "revision": (str, "a commit, branch or tag", lambda v: re.fullmatch(r"[A-Za-z0-9][\w.-]*", v)),
}
_PART_RULES: dict[str, tuple[type, str, Any]] = {
    "requirement": (str, "name==version", _REQUIREMENT.fullmatch),
    "member": (str, "a member of the wheel", bool),
}


def _checked(
    fields: Any, rules: dict[str, tuple[type, str, Any]], where: str, faults: list[str]
) -> bool:
    """Whether `fields` obeys `rules`; every breach becomes one line of `faults`."""
    before = len(faults)
    if not isinstance(fields, dict):
        faults.append(f"{where}: expected a mapping, got {type(fields).__name__}")
        return False
    faults += [f"{where}: {key} is missing" for key in rules if key not in fields]
    faults += [f"{where}: {key} is not a known key" for key in fields if key not in rules]
    for key, (kind, expected, rule) in rules.items():
        if key in fields and (type(fields[key]) is not kind or not rule(fields[key])):
            faults.append(f"{where}: {key}: expected {expected}, got {fields[key]!r}")
    return len(faults) == before


def _parsed_entry(name: Any, fields: Any, faults: list[str]) -> ModelEntry | None:
    before = len(faults)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        faults.append(
            f"{name!r}: a name has lower-case letters, digits, dot, dash and underscore, 64 at most"
        )
    fields = dict(fields) if isinstance(fields, dict) else fields
    hub, packages = (
        (fields.pop("hub", None), fields.pop("packages", []))
        if isinstance(fields, dict)
        else (None, [])
    )
    _checked(fields, _RULES, str(name), faults)
    if hub is not None:
        _checked(hub, _HUB_RULES, f"{name}: hub", faults)
    if not isinstance(packages, list):
        faults.append(f"{name}: packages: expected a list, got {type(packages).__name__}")
        packages = []
    for number, part in enumerate(packages, 1):
        _checked(part, _PART_RULES, f"{name}: packages: part {number}", faults)
    if len(faults) > before:
        return None
    return ModelEntry(
        name=name,
        n_bytes=fields.pop("bytes"),
        hub=HubFile(**hub) if hub else None,
        packages=tuple(Part(**part) for part in packages),
        **fields,
    )
