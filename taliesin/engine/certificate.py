"""The block's own proof: what a fixed probe gave right after the fresh prefill.

A probe is a short query derived from the block's ids and some greedy steps after it; the
certificate keeps the SHA-256 of every logits vector. Whoever grafts the block can run the same
probe in milliseconds, with no recompute, and know whether this machine
computes what the saving machine computed. Several steps, not one: a mis-placed window ring was seen
to give equal first logits and then to diverge (docs/exactness.md, F4).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from taliesin.errors import CertificateMismatch
from taliesin.store.header import Certificate

if TYPE_CHECKING:
    from taliesin.engine.llama import Context

PROBE_TOKENS = 7  # an odd batch: neither the single-token nor the 8-row kernels
STEPS = 8
POSITIONS = PROBE_TOKENS + STEPS


def digest(logits: npt.NDArray[np.float32]) -> str:
    """SHA-256 (hex) of a logits vector's bytes, float32 in memory order."""
    return hashlib.sha256(np.ascontiguousarray(logits, dtype="<f4").tobytes()).hexdigest()


def probe(tokens: npt.NDArray[np.int32], n_vocab: int) -> list[int]:
    """`PROBE_TOKENS` ids spread over the vocabulary by the hash of the block's ids."""
    seed = hashlib.sha256(np.ascontiguousarray(tokens, dtype="<i4").tobytes()).digest()
    return [
        int.from_bytes(seed[4 * i : 4 * i + 4], "little") % n_vocab for i in range(PROBE_TOKENS)
    ]


def run(
    context: Context, query: list[int], n_tokens: int, n_steps: int
) -> tuple[list[str], list[int]]:
    """Digests and greedy ids of a probe in a context that holds exactly the block. The context is
    not usable for it afterwards.
    """
    from taliesin.engine import llama

    digests, ids = [], []
    for logits in llama.greedy(context, query, n_tokens, n_steps):
        digests.append(digest(logits))
        ids.append(int(logits.argmax()))
    return digests, ids


def take(context: Context, tokens: npt.NDArray[np.int32]) -> Certificate:
    """The certificate of a block whose fresh prefill `context` holds. Save the state before: this
    adds tokens.
    """
    query = probe(tokens, context.model.n_vocab)
    digests, ids = run(context, query, len(tokens), STEPS)
    return Certificate(tuple(query), tuple(digests), tuple(ids))


def require(context: Context, certificate: Certificate, n_tokens: int, where: object) -> None:
    """Run the certificate's probe in a context that holds exactly the block.

    Raises:
        CertificateMismatch: a vector differs; says how many, and from which step on.
    """
    digests, _ = run(context, list(certificate.probe), n_tokens, len(certificate.sha256) - 1)
    different = [
        i for i, (a, b) in enumerate(zip(digests, certificate.sha256, strict=True)) if a != b
    ]
    if different:
        raise CertificateMismatch(
            "the graft does not compute what the saving machine computed",
            expected=f"{len(digests)} logits vectors equal",
            got=f"{len(different)} differ, first at step {different[0]}",
            where=where,
            hint="save the text again on this machine, or graft with --inexact and a label on "
            "the result",
        )
