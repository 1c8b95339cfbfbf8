"""Two sets of logits compared: bits first, then distributions, then statistics over samples.

Pure numpy and scipy. "Exact" means that the bytes are equal, nothing else; the other figures say
how far from it a failure is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from taliesin.host.findings import Amount, Figure, Fraction
from taliesin.host.records import Record

Logits = npt.NDArray[np.float32]


class Pair(NamedTuple):
    """One logits vector of the reference run and of the run under test.

    kl: KL(reference || tested) in nats, from float64 log-softmax. worst: largest absolute
    difference of two logits.
    """

    equal: bool
    kl: float
    argmax_equal: bool
    worst: float
    reference_logprob: float  # of the reference's most likely token, in the reference
    tested_logprob: float  # of the same token, in the run under test


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Natural log-probabilities, shape as `logits`, float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return wide - math.log(np.exp(wide).sum())


def compare(reference: Logits, tested: Logits) -> Pair:
    """Compare two vectors of shape (n_vocab,)."""
    equal = reference.tobytes() == tested.tobytes()
    p, q = log_softmax(reference), log_softmax(tested)
    best = int(reference.argmax())
    kl = 0.0 if equal else float(np.sum(np.exp(p) * (p - q)))
    return Pair(
        equal,
        kl,
        best == int(tested.argmax()),
        float(np.abs(reference - tested).max()),
        float(p[best]),
        float(q[best]),
    )


class Statistics(Record):
    """Over `n` sampled pairs. Mann-Whitney U (two-sided, scipy) and Cliff's delta compare the
    log-probabilities that the two runs give to the reference's most likely token; `mann_whitney_p`
    is None where the test is undefined (fewer than 2 pairs, or no variation).
    """

    n: Amount
    kl_median: Figure
    kl_p99: Figure
    kl_max: Figure
    argmax_agreement: Fraction
    mann_whitney_u: Figure | None
    mann_whitney_p: Figure | None
    cliffs_delta: Figure | None


def statistics(pairs: Sequence[Pair]) -> Statistics:
    """Median, p99 and maximum of KL, argmax agreement, Mann-Whitney U and Cliff's delta over
    `pairs` (at least one).
    """
    from scipy.stats import mannwhitneyu

    kl = np.array([p.kl for p in pairs])
    ours, theirs = [p.reference_logprob for p in pairs], [p.tested_logprob for p in pairs]
    u = p_value = delta = None
    if len(pairs) > 1 and len({*ours, *theirs}) > 1:
        test = mannwhitneyu(ours, theirs, alternative="two-sided")
        u, p_value = float(test.statistic), float(test.pvalue)
        delta = 2 * u / (len(ours) * len(theirs)) - 1
    return Statistics(
        n=len(pairs),
        kl_median=float(np.median(kl)),
        kl_p99=float(np.quantile(kl, 0.99)),
        kl_max=float(kl.max()),
        argmax_agreement=sum(p.argmax_equal for p in pairs) / len(pairs),
        mann_whitney_u=u,
        mann_whitney_p=p_value,
        cliffs_delta=delta,
    )
