"""Whether a bank still holds: every entry, every program run again, every byte of every block.

Finds, and mends nothing (`galahad.bank.rebuild` does). Deliberately does not know: how a program is
run, and how a certificate is recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from galahad import sandbox
from galahad.answerer.answerer import SavedBlock
from galahad.bank.bank import Bank
from galahad.bank.entry import MERGED, Entry, Trouble, Verify, contradictions
from galahad.errors import BankError
from taliesin.errors import ToolkitError

if TYPE_CHECKING:
    from galahad.answerer.answerer import BlockAnswerer


def check(
    bank: Bank, verify: Verify | None = sandbox.verify, answerer: BlockAnswerer | None = None
) -> list[Trouble]:
    """Everything that is not as it must be: entries, programs (run again by `verify`), blocks
    (hashed, and with `answerer` their certificates computed again where they are of its model).
    """
    return [*_entries(bank, verify, answerer), *_library(bank)]


def _entries(
    bank: Bank, verify: Verify | None, answerer: BlockAnswerer | None
) -> Iterator[Trouble]:
    for id_ in bank.ids():
        try:
            entry = bank.get(id_)
        except BankError as error:
            yield Trouble(what=id_, kind="entry", detail=error.message)
            continue
        yield from contradictions(entry, id_)
        if verify is not None:
            verdict = verify(entry.program, entry.answer)
            if verdict.verdict != "verified":
                said = f"{verdict.verdict}, {verdict.cause}: {verdict.detail}"
                yield Trouble(what=id_, kind="program", detail=said)
        if not entry.blocks:
            yield Trouble(what=id_, kind="block", detail="it has none")
        for block in entry.blocks.values():
            yield from _block(bank, entry, block, answerer)


def _block(
    bank: Bank, entry: Entry, block: SavedBlock, answerer: BlockAnswerer | None
) -> Iterator[Trouble]:
    try:
        with bank.library.open(block.name) as opened:
            if opened.block_id != block.id:
                detail = "it is not the block that the entry names"
                yield Trouble(what=block.name, kind="block", detail=detail)
            if opened.header.text != entry.document():
                detail = "it does not hold what the entry says"
                yield Trouble(what=block.name, kind="block", detail=detail)
            opened.verify()
            if answerer is not None and block.model_sha256 == answerer.model_sha256:
                answerer.certify(opened)
    except ToolkitError as error:
        yield Trouble(what=block.name, kind="block", detail=f"{error.kind}: {error.message}")


def _library(bank: Bank) -> Iterator[Trouble]:
    for name in bank.foreign_files():
        yield Trouble(what=name, kind="entry", detail="no entry can have this file")
    entries = [entry for id_ in bank.ids() if (entry := bank.find(id_)) is not None]
    known = {block.name for entry in entries for block in entry.blocks.values()}
    kept = {MERGED, *bank.set_aside_ids()}
    for line in bank.library.list():
        if line.name is None or (
            line.name not in known and line.name.rpartition("@")[0] not in kept
        ):
            yield Trouble(what=line.name or line.id, kind="block", detail="no entry names it")
