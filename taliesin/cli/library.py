"""`taliesin list|show|check|rm|gc|export|import|rename|pin|unpin`: the blocks on disk, without an
engine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taliesin.cli.options import BlockName, Json, LibraryPath, Model, Yes, confirm, parse_bytes
from taliesin.errors import EXIT_NO, EXIT_PARTIAL, UsageError
from taliesin.host import clock, console, durable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taliesin.prove.rebuild import Proof
    from taliesin.store.blockfile import BlockFile
    from taliesin.store.library import BlockInfo, Library

commands = typer.Typer()

Names = Annotated[
    list[str], typer.Argument(help="Names, or the first digits of ids.", show_default=False)
]


def _open(path: Path | None, create: bool = False) -> Library:
    from taliesin.store.library import Library

    return Library(path, create=create)


def _time(unix: float | None) -> str | None:
    return None if unix is None else clock.of_unix(unix)


def _fields(info: BlockInfo) -> dict[str, Any]:
    return {**info._asdict(), "last_used": _time(info.last_used)}


def _label(info: BlockInfo) -> str:
    return info.name if info.name is not None else f"({info.id[:12]})"


def _table(lines: Iterable[BlockInfo]) -> str:
    rows = [
        (
            _label(line),
            line.id[:12],
            line.n_tokens,
            console.human_bytes(line.file_bytes),
            line.equals,
            line.created[:16].replace("T", " "),
            "pinned" if line.pinned and not line.problem else line.problem or "",
        )
        for line in lines
    ]
    return console.table(("name", "id", "tokens", "size", "equals", "created", "state"), rows)


@commands.command("list")
def list_blocks(
    names: Annotated[
        bool, typer.Option("--names", help="Names only, one a line, for other commands.")
    ] = False,
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """List the blocks.

    taliesin list

    A block in parentheses has no name: its writer was killed at the last step, or a name was
    removed by hand. The state says what is wrong with a block, as far as its header tells;
    `taliesin check` reads everything.

    Exit codes: 0 done, 10 no library.
    """
    with _open(library) as store:
        lines = store.list()
        if as_json:
            console.emit_json(
                "taliesin.list/1",
                {"library": str(store.path), "blocks": [_fields(line) for line in lines]},
            )
        elif names:
            for line in lines:
                if line.name is not None:
                    console.out(line.name)
        elif lines:
            console.out(_table(lines))
            unique = {line.id: line.file_bytes for line in lines}
            console.note(
                f"{console.count(len(unique), 'block')}, "
                f"{console.human_bytes(sum(unique.values()))} in {store.path}"
            )
        else:
            console.note(f"no blocks in {store.path}; `taliesin save` makes one")


@commands.command()
def show(
    name: BlockName,
    text: Annotated[
        bool, typer.Option("--text", help="Print the text of the block and nothing else.")
    ] = False,
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Show what a block says of itself: sizes, promise, recipe, certificate.

    taliesin show handbook

    Exit codes: 0 done, 10 no such block, 12 damaged, 20 not a block file, 21 of a newer version.
    """
    with _open(library) as store, store.open(name) as block:
        if text:
            console.out(block.header.text)
            return
        info = store.info(name)
        fields = _block_fields(store, block, info)
        if as_json:
            console.emit_json("taliesin.show/1", fields)
        else:
            _print_fields(fields)


def _block_fields(store: Library, block: BlockFile, info: BlockInfo) -> dict[str, Any]:
    from taliesin.host.records import plain

    header = block.header
    return {
        "name": info.name,
        "id": block.block_id,
        "title": header.title,
        "created": header.created,
        "equals": header.equals,
        "n_tokens": block.layout.n_tokens,
        "n_tail": block.layout.n_tail,
        "part": plain(header.part),
        "text_bytes": block.layout.text_bytes,
        "payload_bytes": block.payload_bytes,
        "file_bytes": block.layout.file_bytes,
        "n_chunks": block.layout.n_chunks,
        "chunk_bytes": block.layout.chunk_bytes,
        "pinned": info.pinned,
        "last_used": _time(info.last_used),
        "verified": not store.needs_verification(block, "once"),
        "after_query": list(header.after_query),
        "stop": list(header.stop),
        "source": plain(header.source),
        "recipe": dict(header.recipe),
        "certificate": plain(header.certificate),
        "extra": dict(header.extra),
        "root": block.root,
        "path": str(block.path),
    }


_PROMISES = {
    "one-shot": "a graft equals the ordinary run of block and query as one prompt",
    "block-then-query": "a graft equals the ordinary run of the block, then the query",
}


def _print_fields(fields: dict[str, Any]) -> None:
    """One `key  value` line per field, nested objects indented; strings as JSON, so that no control
    character gets out.
    """

    def printable(value: object) -> str:
        if isinstance(value, str) and value.isprintable():
            return value
        return json.dumps(value, ensure_ascii=True)

    shown: dict[str, object] = {
        key: value for key, value in fields.items() if value not in (None, [], {})
    }
    shown["equals"] = f"{fields['equals']}: {_PROMISES[fields['equals']]}"
    shown["part"] = f"{fields['part']['index'] + 1} of {fields['part']['count']}"
    for key in ("payload_bytes", "file_bytes", "chunk_bytes"):
        shown[key] = f"{fields[key]} ({console.human_bytes(fields[key])})"
    if fields["certificate"]:
        vectors = fields["certificate"]["sha256"]
        shown["certificate"] = f"{len(vectors)} logits vectors, the first {vectors[0][:16]}..."
    width = max(len(key) for key in [*shown, *fields["recipe"]]) + 2
    for key, value in shown.items():
        if isinstance(value, dict):
            console.out(key)
            for inner, item in sorted(value.items()):
                console.out(f"  {printable(inner).ljust(width)}{printable(item)}")
        else:
            console.out(f"{key.ljust(width + 2)}{printable(value)}")


@commands.command()
def check(
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Move damage to quarantine/, remove leftovers, put file modes right."
        ),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Read headers only, not the whole files.")
    ] = False,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Stop reading after that long; the next check goes on there.",
            show_default=False,
        ),
    ] = None,
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Read every file of the library and say what is damaged or does not belong there.

    taliesin check

    Changes nothing without --repair. Prints one line per finding: kind, file, what is wrong, what
    was done. A block without a name, a leftover of a killed writer, a wide file mode and a foreign
    file are remarks, not damage.

    Exit codes: 0 no damage, 3 damage was found (with --repair it is in quarantine now), 4 stopped
    by --max-seconds before the last block and no damage so far, 10 no library, 11 locked, 13
    --repair in a library that cannot be written.
    """
    from taliesin.store.check import check as check_library

    with _open(library) as store:
        total = sum({line.id: line.file_bytes for line in store.list()}.values())
        with console.progress("check", total, "bytes") as advance:
            report = check_library(store, repair, not quick, max_seconds, advance)
        damage = [finding for finding in report.findings if finding.is_damage]
        if as_json:
            console.emit_json(
                "taliesin.check/1",
                {
                    "library": str(store.path),
                    "sound": report.sound,
                    "complete": report.complete,
                    "n_blocks": report.n_blocks,
                    "n_sound": report.n_sound,
                    "n_refs": report.n_refs,
                    "deep": not quick,
                    "findings": [
                        {**finding._asdict(), "damage": finding.is_damage}
                        for finding in report.findings
                    ],
                },
            )
        else:
            for finding in report.findings:
                done = f"; {finding.action}" if finding.action else ""
                console.out(f"{finding.kind}  {finding.path}  {finding.message}{done}")
            what = "headers" if quick else "files"
            rest = "" if report.complete else "; stopped before the end"
            console.note(
                f"{console.count(report.n_blocks, 'block')}, "
                f"{console.count(report.n_refs, 'name')}: {report.n_sound} sound "
                f"({what} read), {console.count(len(damage), 'finding')} of damage{rest}"
            )
    if not report.sound:
        raise typer.Exit(EXIT_NO)
    if not report.complete:
        raise typer.Exit(EXIT_PARTIAL)


@commands.command("rm")
def remove(
    names: Names, yes: Yes = False, library: LibraryPath = None, as_json: Json = False
) -> None:
    """Remove names, and the blocks that no other name leads to; by id, a block and all its names.

    taliesin rm handbook --yes

    Nothing is removed unless all of them exist.

    Exit codes: 0 done, 2 no confirmation, 3 answered no, 10 no such block, 11 locked.
    """
    with _open(library) as store:
        lines = [store.info(name) for name in names]
        if not confirm(f"Remove {', '.join(map(_label, lines))}?", yes):
            raise typer.Exit(EXIT_NO)
        removed = [line for name in dict.fromkeys(names) for line in store.remove(name)]
    _emit_changed("taliesin.rm/1", "removed", removed, as_json)


def _emit_changed(schema: str, verb: str, lines: Sequence[BlockInfo], as_json: bool) -> None:
    if as_json:
        console.emit_json(schema, {"blocks": [_fields(line) for line in lines]})
    else:
        for line in lines:
            console.note(
                f"{verb} {_label(line)}  {line.id[:12]}  {console.human_bytes(line.file_bytes)}"
            )


@commands.command()
def gc(
    budget: Annotated[
        str, typer.Option("--budget", help="What the files may take: 10GB, 500MB, 2GiB.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go; remove nothing.")
    ] = False,
    yes: Yes = False,
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Remove blocks until the rest fits a budget: those without a name first, then the least
    recently used.

    taliesin gc --budget 10GB --yes

    Pinned blocks stay (`taliesin pin`). A block that was never used counts as used when it was
    stored.

    Exit codes: 0 done, 2 no confirmation or not a size, 3 answered no, 4 pinned blocks alone are
    over the budget, 10 no library, 11 locked.
    """
    budget_bytes = parse_bytes(budget)
    with _open(library) as store:
        report = store.gc(budget_bytes, dry_run=True)
        if not dry_run:
            # Also with nothing to remove: leftovers of killed writers go.
            question = (
                f"Remove {console.count(len(report.removed), 'block')} "
                f"({console.human_bytes(report.freed_bytes)})?"
            )
            if report.removed and not confirm(question, yes):
                raise typer.Exit(EXIT_NO)
            report = store.gc(budget_bytes)
    if as_json:
        fields = {
            **report._asdict(),
            "removed": [_fields(line) for line in report.removed],
            "dry_run": dry_run,
        }
        console.emit_json("taliesin.gc/1", fields)
    else:
        if report.removed:
            console.out(_table(report.removed))
        verb = "would be freed" if dry_run else "freed"
        console.note(
            f"{console.human_bytes(report.freed_bytes)} {verb}, "
            f"{console.human_bytes(report.kept_bytes)} kept"
        )
    if report.kept_bytes > budget_bytes:
        console.warn("pinned blocks alone are over the budget")
        raise typer.Exit(EXIT_PARTIAL)


@commands.command()
def export(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write.", show_default=False)
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names, or the first digits of ids.", show_default=False),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every named block.")] = False,
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Write blocks into one file, to carry to another machine.

    taliesin export handbook --out handbook.tar

    Every block is hashed on the way. The file is a tar with a manifest first (docs/format.md).

    Exit codes: 0 done, 2 the file exists or its folder does not, 10 no such block, 12 a block is
    damaged, 13 not written.
    """
    if everything == bool(names):
        raise UsageError("names or --all, one of the two")
    with _open(library) as store:
        chosen = names or [line.name for line in store.list() if line.name is not None]
        durable.require_output(out)
        n_bytes = store.export(chosen, out)
    if as_json:
        console.emit_json(
            "taliesin.export/1", {"path": str(out), "bytes": n_bytes, "names": chosen}
        )
    else:
        console.note(
            f"{console.count(len(chosen), 'block')}, {console.human_bytes(n_bytes)} in {out}"
        )


@commands.command("import")
def import_blocks(
    bundle: Annotated[
        Path, typer.Argument(help="A file that `taliesin export` wrote.", show_default=False)
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="Names that exist here lead to the new blocks.")
    ] = False,
    certify: Annotated[
        bool,
        typer.Option(
            "--certify/--no-certify",
            help="Re-run each block's certificate, where its model is here.",
        ),
    ] = True,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild", help="Compute blocks that are not exact here again from their token ids."
        ),
    ] = False,
    model: Model = None,
    yes: Yes = False,
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Take in the blocks of a file that `taliesin export` wrote, and say what each is worth on this
    machine.

    taliesin import handbook.tar --rebuild

    Nothing enters unless every block of the file is intact. Then each block's recipe is compared
    with this machine's and its certificate re-run: "exact here" is said only after that. A block
    from another instruction set or device is "functional, not exact here"; --rebuild prefills it
    again from its token ids, proves it, and puts it in its place.

    Exit codes: 0 done, and no block is known not to be exact here, 2 a name is taken by another
    block, 3 a block is not exact here, or answered no, 10 no such file, 12 damaged, 13 no space, 20
    not a bundle, 21 of a newer version.
    """
    from taliesin.store.bundle import reading

    if rebuild and not certify:
        raise UsageError("--rebuild and --no-certify contradict each other")
    if replace and not confirm("Blocks here that have the same names are removed. Go on?", yes):
        raise typer.Exit(EXIT_NO)
    # what is no bundle, or was cut short, leaves no empty library behind
    with reading(bundle) as (_, members):
        for _ in members:
            pass
    with _open(library, create=True) as store:
        report = store.import_(bundle, replace)
        names = [str(line.name) for line in report.added]
        proofs = _proofs(store, names, model, rebuild) if certify and names else []
        added = [store.info(name) for name in names]
    if as_json:
        fields = {
            "added": [_fields(line) for line in added],
            "present": report.present,
            "names_hashed": report.names_hashed,
            "proofs": [proof._asdict() for proof in proofs],
        }
        console.emit_json("taliesin.import/1", fields)
    else:
        for line in added:
            console.note(
                f"added {_label(line)}  {line.id[:12]}  {console.human_bytes(line.file_bytes)}"
            )
        for name in report.present:
            console.note(f"{name} is here already")
        if not report.names_hashed:
            console.note(
                "this bundle is of version 1.0, which has no hash over its names: the blocks are "
                "what was exported, their names are only what the file says"
            )
        for proof in proofs:
            console.note(f"{proof.name}: {proof.statement}")
        if names and not certify:
            console.note("not checked here: the first graft does that")
    if any(proof.verdict in ("inexact", "unusable") for proof in proofs):
        raise typer.Exit(EXIT_NO)


def _proofs(store: Library, names: Sequence[str], model: str | None, rebuild: bool) -> list[Proof]:
    """What each block is worth here; with `rebuild` after those that are not exact were computed
    again.
    """
    from taliesin.prove.rebuild import Rebuilder

    worker = Rebuilder(store, model=model)
    try:
        proofs = {name: worker.prove(name) for name in names}
        todo = [name for name, proof in proofs.items() if proof.verdict != "exact"]
        if rebuild and todo:
            for outcome in worker.run(todo).outcomes:
                if outcome.status != "rebuilt":
                    console.warn(f"{', '.join(outcome.names)}: {outcome.status}: {outcome.reason}")
            proofs |= {name: worker.prove(name) for name in todo}
    finally:
        worker.close()
    return list(proofs.values())


@commands.command()
def rename(
    old: BlockName,
    new: Annotated[str, typer.Argument(help="The new name.", show_default=False)],
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Give a block another name; a block without one gets its first.

    taliesin rename handbook "handbook 2026"

    Exit codes: 0 done, 2 the new name is taken or malformed, 10 no such block, 11 locked.
    """
    with _open(library) as store:
        info = store.rename(old, new)
    _emit_changed("taliesin.rename/1", "now", [info], as_json)


@commands.command()
def pin(names: Names, library: LibraryPath = None, as_json: Json = False) -> None:
    """Keep blocks from `gc`.

    taliesin pin handbook

    Exit codes: 0 done, 10 no such name, 11 locked.
    """
    _set_pinned(names, True, library, "taliesin.pin/1", as_json)


@commands.command()
def unpin(names: Names, library: LibraryPath = None, as_json: Json = False) -> None:
    """Let `gc` remove blocks again.

    taliesin unpin handbook

    Exit codes: 0 done, 10 no such name, 11 locked.
    """
    _set_pinned(names, False, library, "taliesin.unpin/1", as_json)


def _set_pinned(
    names: list[str], pinned: bool, library: Path | None, schema: str, as_json: bool
) -> None:
    with _open(library) as store:
        for name in names:
            store.info(name)  # all of them exist, or none is changed
        lines = [store.pin(name, pinned) for name in names]
    _emit_changed(schema, "pinned" if pinned else "unpinned", lines, as_json)
