"""The proof of a block on a llama-server: grafts against the server's own runs.

HTTP gives no logits. Compared are the tokens and the best log-probabilities of each step
(`served.LEVEL`), with a live run (the block, then block and query) and a one-shot run. A decoy is
computed in the slot before each graft, so that a restore which does nothing cannot pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from taliesin.prove.report import VerifyReport, VerifyRow, judged
from taliesin.prove.verify import queries
from taliesin.server.backend import ServerBackend
from taliesin.server.client import N_PROBS, Completion
from taliesin.server.served import LEVEL
from taliesin.server.slots import Slot
from taliesin.store.blockfile import BlockFile

QUERY_LENGTHS = (1, 7, 64)
"""Query tokens of a verification: a lone token, less than a kernel's row block, a full one."""

STEPS = 16


def verify(
    backend: ServerBackend,
    block: BlockFile,
    *,
    lengths: tuple[int, ...] = QUERY_LENGTHS,
    n_steps: int = STEPS,
    inexact: bool = False,
    on_row: Callable[[VerifyRow], None] = lambda _row: None,
) -> VerifyReport:
    """Compare grafts of `block` on `backend` with what its server computes without them.

    Raises:
        As `ServerBackend.graft` and `InSlot.complete`.
    """
    grafted = backend.graft(block, inexact=inexact)
    header, client, served = grafted.header, backend.server.client, backend.served
    ids = header.tokens.tolist()
    bound = int(header.tokens.max()) + 1
    n_decoy = max(64, min(len(ids), backend.n_ctx - n_steps) // 2)
    decoy = queries(bound, (n_decoy,), seed=1)[0]
    rows, fresh, grafts = [], [], []

    def run(tokens: list[int], slot: Slot) -> Completion:
        return client.complete(tokens, n_steps, slot.number, n_probs=N_PROBS, ignore_eos=True)

    for query in queries(bound, lengths):
        served.require_room(len(ids) + len(query) + n_steps)
        with backend.slots.lease(None) as slot:
            slot.block = None
            client.erase_slot(slot.number)
            began = time.perf_counter()
            client.complete(ids, 0, slot.number)
            live = run([*ids, *query], slot)
            fresh.append(time.perf_counter() - began - live.predict_seconds)
            client.erase_slot(slot.number)
            one_shot = run([*ids, *query], slot)
            client.complete(decoy, 1, slot.number)
        began = time.perf_counter()
        tested = grafted.place.complete(query, n_steps, n_probs=N_PROBS, ignore_eos=True)
        grafts.append(time.perf_counter() - began - tested.predict_seconds)
        rows.append(compare(len(query), n_steps, tested, live, one_shot))
        on_row(rows[-1])
    reasons = [*map(str, grafted.differences), *grafted.inexact]
    verdict = judged(rows, header.equals, reasons)
    return VerifyReport(
        name=block.block_id or "",
        engine="server",
        level=LEVEL,
        block_id=block.block_id or "",
        title=header.title,
        n_tokens=len(ids),
        promise=header.equals,
        trials=1,
        n_steps=n_steps,
        rows=rows,
        block_then_query_holds=verdict.block_then_query,
        one_shot_holds=verdict.one_shot,
        statistics=None,
        fresh_seconds=float(np.median(fresh)),
        graft_seconds=float(np.median(grafts)),
        sabotage=None,
        recipe=dict(header.recipe),
        inexact=reasons,
        exact=verdict.exact,
    )


def compare(
    query_tokens: int, n_steps: int, tested: Completion, live: Completion, one_shot: Completion
) -> VerifyRow:
    """Equal steps of a graft against the two references; a step without reported probabilities
    counts as different.
    """

    def equal(left: Sequence[object], right: Sequence[object]) -> int:
        return sum(a == b for a, b in zip(left, right, strict=False))

    alike = [a == b for a, b in zip(tested.logprobs, live.logprobs, strict=False)]
    alike += [False] * (n_steps - len(alike))
    return VerifyRow(
        query_tokens=query_tokens,
        n_vectors=n_steps,
        equal_block_then_query=sum(alike),
        equal_one_shot=equal(tested.logprobs, one_shot.logprobs),
        first_difference=None if all(alike) else alike.index(False),
        n_reused=tested.cache_n,
        n_evaluated=tested.prompt_n,
        tokens_block_then_query=equal(tested.tokens, live.tokens),
        tokens_one_shot=equal(tested.tokens, one_shot.tokens),
    )
