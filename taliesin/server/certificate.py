"""The proof that a server's block carries: what a fixed probe gave right after its fresh prefill.

HTTP gives no logits, so it is token ids and the hashes of the best log-probabilities. A block of
the embedded engine has a certificate of logits instead; of that a server can re-check the
greedy ids.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Set
from typing import Any

import numpy as np

from taliesin.engine import certificate
from taliesin.errors import CertificateMismatch
from taliesin.server.client import N_PROBS
from taliesin.server.served import InSlot, Served
from taliesin.store.blockfile import BlockFile

KEY = "server_certificate"
"""The key of a block's meta object."""

STEPS = 16
POSITIONS = certificate.PROBE_TOKENS + STEPS


def take(served: Served, n_vocab: int, ids: list[int], slot: int) -> dict[str, Any]:
    """What a fixed probe gives after the block `ids` that `slot` holds."""
    query = certificate.probe(np.asarray(ids, np.int32), n_vocab)
    answer = served.server.client.complete(
        [*ids, *query], STEPS, slot, n_probs=N_PROBS, ignore_eos=True
    )
    served.require_effective(len(ids), len(query), answer.cache_n, answer.prompt_n)
    return {
        "probe": query,
        "tokens": answer.tokens,
        "sha256": [digest(step) for step in answer.logprobs],
    }


def require(place: InSlot, block: BlockFile, end_of_generation: Set[int]) -> None:
    """Run the block's certificate in its slot.

    Raises:
        CertificateMismatch: it does not hold, or there is none.
    """
    own, of_logits = block.header.extra.get(KEY), block.header.certificate
    if isinstance(own, dict):
        answer = place.complete(own["probe"], STEPS, n_probs=N_PROBS, ignore_eos=True)
        holds = (
            answer.tokens == own["tokens"]
            and [digest(step) for step in answer.logprobs] == own["sha256"]
        )
    elif of_logits is not None:
        # The server ends at an end-of-generation token, the stored steps go on behind it.
        greedy = list(
            itertools.takewhile(lambda token: token not in end_of_generation, of_logits.greedy)
        )
        answer = place.complete(list(of_logits.probe), len(of_logits.greedy))
        holds = answer.tokens[: len(greedy)] == greedy
    else:
        raise CertificateMismatch("the block carries no certificate", where=block.path)
    if not holds:
        raise CertificateMismatch(
            "the graft does not compute what the saving machine computed",
            where=block.path,
            hint="save the text again on this machine, or graft with --inexact and a label "
            "on the result",
        )


def digest(step: tuple[tuple[int, float], ...]) -> str:
    """SHA-256 (hex) of one step's (id, log-probability) pairs as JSON, all digits."""
    return hashlib.sha256(json.dumps(step, separators=(",", ":")).encode()).hexdigest()
