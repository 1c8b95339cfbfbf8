"""Write what the code says of itself: docs/cli.md from every `--help` and the exit codes of the
exception trees, and docs/schemas/ from the typed records (`taliesin.host.records`).

python scripts/make_docs.py            write them
python scripts/make_docs.py --check    exit 3 if a file differs (a test calls this)
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import typer

import galahad
import galahad.cli
import galahad.errors
import taliesin
import taliesin.cli
import taliesin.errors
from taliesin.host.findings import Result
from taliesin.host.records import Record, schema

DOCS = Path(__file__).parent.parent / "docs"
WIDTH = 100

OUTCOMES = [
    (taliesin.errors.EXIT_OK, "-", "done; the answer is yes"),
    (1, "-", "a crash: a bug, please report it"),
    (taliesin.errors.EXIT_NO, "-", "completed; the answer is no"),
    (taliesin.errors.EXIT_PARTIAL, "-", "completed in part"),
    (taliesin.errors.EXIT_INTERRUPTED, "-", "interrupted (SIGINT)"),
    (taliesin.errors.EXIT_TERMINATED, "-", "terminated (SIGTERM)"),
]


def helps(command: Any, name: str, parent: Any = None) -> Iterator[tuple[str, str]]:
    """(command line, help text) of a command and of everything below it."""
    context = command.context_class(
        command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH
    )
    yield context.command_path, command.get_help(context)
    for child in sorted(getattr(command, "commands", {})):
        yield from helps(command.commands[child], child, context)


def exit_codes() -> list[tuple[int, str, str]]:
    """Every exit code: outcomes, and each class of the two trees with the first line of what its
    tree says of it.
    """

    def below(
        kind: type[taliesin.errors.ToolkitError],
    ) -> Iterator[type[taliesin.errors.ToolkitError]]:
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    trees = f"{taliesin.errors.__doc__}\n{galahad.errors.__doc__}".splitlines()
    rows = list(OUTCOMES)
    for kind in below(taliesin.errors.ToolkitError):
        line = next((t for t in trees if f" {kind.__name__} " in t), "")
        words = line.partition(kind.__name__)[2].split(maxsplit=1)
        if kind.exit_code != 1 and len(words) == 2:
            rows.append((kind.exit_code, f"`{kind.kind}`", words[1].strip()))
    return sorted(set(rows))


def document() -> str:
    """The whole of docs/cli.md."""
    os.environ.pop("COLUMNS", None)
    lines = [
        "# Commands",
        "",
        "Written by `scripts/make_docs.py` from the commands; a test fails when it is out of date.",
        "stdout is data and stderr everything else; every command takes `--json`. `-q` before "
        "the verb silences notes.",
        "",
        "## Exit codes",
        "",
        "| code | kind in `--json` errors | meaning |",
        "| --- | --- | --- |",
        *(f"| {code} | {kind} | {meaning} |" for code, kind, meaning in exit_codes()),
    ]
    for app, name in ((taliesin.cli.app, "taliesin"), (galahad.cli.app, "galahad")):
        for path, text in helps(typer.main.get_command(app), name):
            level = "##" if path == name else "###"
            lines += [
                "",
                f"{level} {path}",
                "",
                "```text",
                *(line.rstrip() for line in text.splitlines()),
                "```",
            ]
    return "\n".join(lines) + "\n"


def records() -> dict[str, type[Record]]:
    """Every record that has a schema, by the schema's name."""
    for package in (taliesin, galahad):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            # The one module that needs llama_cpp, and the two that run a command.
            if module.name not in ("taliesin.engine.llama", f"{package.__name__}.__main__"):
                importlib.import_module(module.name)

    def below(kind: type[Record]) -> Iterator[type[Record]]:
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    found: dict[str, type[Record]] = {}
    for kind in below(Record):
        name = kind.__dict__.get("SCHEMA")
        if name and found.setdefault(name, kind) is not kind:
            raise ValueError(f"two records have the schema {name}: {found[name]} and {kind}")
    return found


def whole_schema(kind: type[Record]) -> dict[str, Any]:
    """The JSON Schema of a record. A result is printed and kept with its schema's name besides."""
    made = schema(kind)
    if issubclass(kind, Result):
        own = next(d for d in (made, *made.get("$defs", {}).values()) if "properties" in d)
        top = made["$defs"][made["$ref"].rpartition("/")[2]] if "$ref" in made else own
        top["properties"] = {"schema": {"const": kind.SCHEMA}, **top["properties"]}
        top["required"] = ["schema", *(name for name in top["required"] if name != "schema")]
    return made


def documents() -> dict[Path, str]:
    """Path and text of every written document."""
    folder = DOCS / "schemas"
    schemas = {
        folder / f"{name.replace('/', '.')}.json": json.dumps(whole_schema(kind), indent=1) + "\n"
        for name, kind in records().items()
    }
    return {DOCS / "cli.md": document(), **schemas}


def main() -> int:
    wanted = documents()
    there = {DOCS / "cli.md", *(DOCS / "schemas").glob("*.json")}
    stale = [
        path
        for path in sorted(there | set(wanted))
        if path not in wanted
        or not path.exists()
        or path.read_text(encoding="utf-8") != wanted[path]
    ]
    if "--check" in sys.argv:
        for path in stale:
            print(
                f"{path.relative_to(DOCS.parent)} is out of date: python scripts/make_docs.py",
                file=sys.stderr,
            )
        return 3 if stale else 0
    for path in stale:
        if path in wanted:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
