"""Making room: which blocks go when a library takes more than its budget.

Promises: blocks without a name go first, then the least recently used; pinned blocks stay; a
block's names go with it. Deliberately does not know: whether a block is sound or suits an engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from taliesin.errors import UsageError
from taliesin.store import drafts
from taliesin.store.folder import storage_errors
from taliesin.store.listing import BlockInfo

if TYPE_CHECKING:
    from taliesin.store.library import Library


class GcReport(NamedTuple):
    """removed: lines of the listing, in order of removal. Pinned blocks can exceed the budget."""

    removed: list[BlockInfo]
    freed_bytes: int
    kept_bytes: int
    budget_bytes: int


def collect(library: Library, budget_bytes: int, *, dry_run: bool) -> GcReport:
    """Remove blocks until the files take at most `budget_bytes`. See `Library.gc`."""
    if budget_bytes < 0:
        raise UsageError("a budget is not negative", got=budget_bytes)
    with storage_errors(library.path), ExitStack() as stack:
        if not dry_run:
            stack.enter_context(library.locked())
            library.remove_leftovers()
        groups: dict[str, list[BlockInfo]] = {}  # the lines of each block, by its id
        for line in library.list():
            if line.file_bytes:
                groups.setdefault(line.id, []).append(line)
        kept = before = sum(group[0].file_bytes for group in groups.values())
        removed: list[BlockInfo] = []
        for group in _in_order_of_removal(library, groups):
            if kept <= budget_bytes:
                break
            if not dry_run:
                library.refs.remove(line.name for line in group if line.name is not None)
                drafts.remove(library.folder, group[0].id)
            kept -= group[0].file_bytes
            removed += group
    return GcReport(removed, before - kept, kept, budget_bytes)


def _in_order_of_removal(
    library: Library, groups: dict[str, list[BlockInfo]]
) -> Iterator[list[BlockInfo]]:
    def age(group: list[BlockInfo]) -> tuple[bool, float]:
        first = group[0]
        try:
            # A block that was never used counts as used when it was stored.
            used = first.last_used or library.block_path(first.id).stat().st_mtime
        except FileNotFoundError:  # removed since, during a dry run
            return False, 0.0
        return first.name is not None, used

    free = [group for group in groups.values() if not any(line.pinned for line in group)]
    yield from sorted(free, key=age)
