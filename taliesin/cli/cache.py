"""`taliesin cache`: what the prefix cache of `taliesin serve` holds on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taliesin.cli.options import Json, Yes, confirm, parse_bytes
from taliesin.errors import EXIT_NO, UsageError
from taliesin.host import clock, console, durable

if TYPE_CHECKING:
    from taliesin.store.piecefolder import Chain, PieceFolder

commands = typer.Typer(
    help="What the prefix cache of `taliesin serve` holds on the disk.", no_args_is_help=True
)

CacheFolder = Annotated[
    Path | None,
    typer.Option(
        "--cache-folder",
        help="Where the pieces lie; `prefixes` in the cache folder if not given.",
        show_default=False,
    ),
]
ChainName = Annotated[
    str, typer.Argument(help="The first 8 or more digits of a chain.", show_default=False)
]
Chains = Annotated[
    list[str], typer.Argument(help="The first 8 or more digits of chains.", show_default=False)
]


def opened(folder: Path | None) -> PieceFolder:
    """The folder of pieces; one that is not there holds none."""
    from taliesin.host.places import cache_dir
    from taliesin.store.piecefolder import PieceFolder

    return PieceFolder(folder or cache_dir() / "prefixes")


def _fields(chain: Chain) -> dict[str, Any]:
    return {
        "chain": chain.leaf,
        "recipe": chain.recipe,
        "n_tokens": chain.n_tokens,
        "n_pieces": len(chain.names),
        "shared_pieces": chain.shared,
        "bytes": chain.n_bytes,
        "last_used": clock.of_unix(chain.used),
        "pinned": chain.pinned,
    }


@commands.command("list")
def list_chains(cache_folder: CacheFolder = None, as_json: Json = False) -> None:
    """List the stored beginnings of prompts, the one that was used last first.

    taliesin cache list

    A chain is one beginning: its pieces from the first to one that nothing follows. Chains share
    pieces, so the sizes add up to more than `taliesin cache size` says.

    Exit codes: 0 done.
    """
    folder = opened(cache_folder)
    chains = folder.chains()
    if as_json:
        fields = {"folder": str(folder.folder), "chains": [_fields(chain) for chain in chains]}
        console.emit_json("taliesin.cache-list/1", fields)
        return
    rows = [
        (
            chain.leaf[:12],
            chain.recipe[:8],
            chain.n_tokens,
            len(chain.names),
            chain.shared,
            console.human_bytes(chain.n_bytes),
            clock.of_unix(chain.used)[:16].replace("T", " "),
            "pinned" if chain.pinned else "",
        )
        for chain in chains
    ]
    if rows:
        headers = ("chain", "recipe", "tokens", "pieces", "shared", "size", "last used", "state")
        console.out(console.table(headers, rows))
    else:
        console.note(f"nothing in {folder.folder}; `taliesin serve` fills it")


@commands.command()
def size(cache_folder: CacheFolder = None, as_json: Json = False) -> None:
    """Say how much the prefix cache takes, in all and for each recipe.

    taliesin cache size

    Exit codes: 0 done.
    """
    folder = opened(cache_folder)
    trees = folder.trees()
    recipes: dict[str, list[int]] = {}
    for name, header in trees.headers.items():
        pair = recipes.setdefault(header.recipe, [0, 0])
        pair[0] += 1
        pair[1] += trees.files[name].n_bytes
    total = sum(n_bytes for _, n_bytes in recipes.values())
    fields = {
        "folder": str(folder.folder),
        "pieces": len(trees.headers),
        "bytes": total,
        "unusable": len(trees.unusable),
        "orphans": len(trees.orphans),
        "pins": len(folder.pins()),
        "recipes": [
            {"recipe": recipe, "pieces": pair[0], "bytes": pair[1]}
            for recipe, pair in sorted(recipes.items())
        ],
    }
    if as_json:
        console.emit_json("taliesin.cache-size/1", fields)
        return
    for recipe, (count, n_bytes) in sorted(recipes.items()):
        console.out(
            f"{recipe[:8]}  {console.count(count, 'piece')}  {console.human_bytes(n_bytes)}"
        )
    told = f"{console.count(len(trees.headers), 'piece')}, {console.human_bytes(total)}"
    console.out(f"{told} in {folder.folder}")


@commands.command()
def check(
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove what is damaged and what could not be used.")
    ] = False,
    cache_folder: CacheFolder = None,
    as_json: Json = False,
) -> None:
    """Read every piece and its hashes.

    taliesin cache check --repair

    A damaged piece is never used: the server that meets it computes again. A piece without the ones
    before it can never be used.

    Exit codes: 0 all whole, or repaired, 3 something is damaged, 11 locked.
    """
    folder = opened(cache_folder)
    found = folder.check()
    wrong = [*found.damaged, *found.orphans]
    removed = folder.remove(wrong) if repair and wrong else 0
    if as_json:
        fields = {
            "folder": str(folder.folder),
            "pieces": found.n_pieces,
            "bytes": found.n_bytes,
            "damaged": found.damaged,
            "orphans": found.orphans,
            "removed": removed,
        }
        console.emit_json("taliesin.cache-check/1", fields)
    else:
        for name, why in found.damaged.items():
            console.out(f"{name[:12]}  {why}")
        for name in found.orphans:
            console.out(f"{name[:12]}  a piece before it is missing")
        console.note(
            f"{console.count(found.n_pieces, 'piece')}, {console.human_bytes(found.n_bytes)} read; "
            f"{len(wrong)} of no use, {removed} removed"
        )
    if len(wrong) > removed:
        raise typer.Exit(EXIT_NO)


@commands.command()
def gc(
    budget: Annotated[
        str, typer.Option("--budget", help="What may stay: 5GB.", show_default=False)
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing.")] = False,
    cache_folder: CacheFolder = None,
    as_json: Json = False,
) -> None:
    """Remove what was not used for longest until the rest fits; pinned chains stay.

    taliesin cache gc --budget 5GB

    `taliesin serve --cache-disk` does the same by itself.

    Exit codes: 0 done, 2 not a size, 3 what is pinned is larger, 11 locked, 13 not permitted.
    """
    folder = opened(cache_folder)
    most = parse_bytes(budget)
    removed, n_bytes, left = folder.evict(most, dry_run=dry_run)
    if as_json:
        fields = {"removed": removed, "bytes": n_bytes, "left_bytes": left, "dry_run": dry_run}
        console.emit_json("taliesin.cache-gc/1", fields)
    else:
        verb = "would be removed" if dry_run else "removed"
        console.note(
            f"{console.count(removed, 'piece')}, {console.human_bytes(n_bytes)} {verb}; "
            f"{console.human_bytes(left)} left"
        )
    if left > most:
        raise typer.Exit(EXIT_NO)


@commands.command()
def clear(yes: Yes = False, cache_folder: CacheFolder = None, as_json: Json = False) -> None:
    """Remove every piece and every pin. Nothing is lost but time: it can be computed again.

    taliesin cache clear --yes

    Exit codes: 0 done, 2 not confirmed, 3 answered no, 11 locked, 13 not permitted.
    """
    folder = opened(cache_folder)
    listed = folder.held()
    n_bytes = sum(held.n_bytes for held in listed)
    told = f"{console.count(len(listed), 'piece')}, {console.human_bytes(n_bytes)}"
    if listed and not confirm(f"{told} in {folder.folder} are removed. Go on?", yes):
        raise typer.Exit(EXIT_NO)
    removed = folder.remove(held.name for held in listed) if listed else 0
    for name in folder.pins():
        folder.pin(name, False)
    if as_json:
        console.emit_json("taliesin.cache-clear/1", {"removed": removed, "bytes": n_bytes})
    else:
        console.note(f"{told} removed")


@commands.command()
def pin(chains: Chains, cache_folder: CacheFolder = None, as_json: Json = False) -> None:
    """Keep chains, whatever the budget says.

    taliesin cache pin 0123abcd

    Exit codes: 0 done, 2 too short a name, 10 no such chain, 13 not permitted.
    """
    _set_pinned(chains, True, cache_folder, as_json)


@commands.command()
def unpin(chains: Chains, cache_folder: CacheFolder = None, as_json: Json = False) -> None:
    """Let chains be evicted again.

    taliesin cache unpin 0123abcd

    Exit codes: 0 done, 2 too short a name, 10 no such chain, 13 not permitted.
    """
    _set_pinned(chains, False, cache_folder, as_json)


def _set_pinned(names: list[str], pinned: bool, cache_folder: Path | None, as_json: bool) -> None:
    folder = opened(cache_folder)
    found = [folder.chain(name) for name in names]  # all of them exist, or none is changed
    for chain in found:
        # Of an unpinned chain every pin in it goes: it may have grown since it was pinned.
        for name in [chain.leaf] if pinned else folder.pins() & set(chain.names):
            folder.pin(name, pinned)
    if as_json:
        now = [_fields(folder.chain(chain.leaf)) for chain in found]
        console.emit_json("taliesin.cache-pin/1", {"chains": now})
    else:
        for chain in found:
            console.note(f"{chain.leaf[:12]} {'pinned' if pinned else 'not pinned'}")


@commands.command("export")
def export_chains(
    out: Annotated[Path, typer.Argument(help="The file to write.", show_default=False)],
    chains: Annotated[
        list[str] | None,
        typer.Argument(
            help="The first digits of chains; all if none is given.", show_default=False
        ),
    ] = None,
    cache_folder: CacheFolder = None,
    as_json: Json = False,
) -> None:
    """Put chains into one file, for the cache of another machine.

    taliesin cache export warm.tar 0123abcd

    Another machine finds them only if it computes as this one: the recipe is in each piece's name.
    A block (`taliesin save`) can be looked at and proved there; a piece cannot.

    Exit codes: 0 done, 2 nothing to export, 10 no such chain, 12 damaged, 13 no space.
    """
    folder = opened(cache_folder)
    found = [folder.chain(name) for name in chains] if chains else folder.chains()
    if not found:
        raise UsageError("nothing to export", where=folder.folder, hint="taliesin cache list")
    durable.require_output(out)
    count = folder.export(found, out)
    if as_json:
        fields = {"path": str(out), "chains": [chain.leaf for chain in found], "pieces": count}
        console.emit_json("taliesin.cache-export/1", fields | {"bytes": out.stat().st_size})
    else:
        console.note(f"{console.count(len(found), 'chain')}, {count} pieces in {out}")


@commands.command("import")
def import_chains(
    bundle: Annotated[
        Path, typer.Argument(help="A file of `taliesin cache export`.", show_default=False)
    ],
    cache_folder: CacheFolder = None,
    as_json: Json = False,
) -> None:
    """Take in the pieces of a file that `taliesin cache export` wrote, each read whole first.

    taliesin cache import warm.tar

    Take files from people you trust only: a piece's hashes say that it is whole, not that its
    numbers were computed from its tokens.

    Exit codes: 0 done, 10 no such file, 12 damaged, 13 no space, 20 not such a file.
    """
    new, here = opened(cache_folder).take_in(bundle)
    if as_json:
        console.emit_json("taliesin.cache-import/1", {"new": new, "present": here})
    else:
        console.note(f"{console.count(new, 'piece')} taken in, {here} were here")
