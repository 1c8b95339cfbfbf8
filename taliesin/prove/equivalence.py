"""Two sets of logits compared: bits first, then distributions, then statistics over samples.

Pure numpy and scipy. "Exact" means that the bytes are equal, nothing else; the other figures say
how far from it a failure is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True)
class Statistics:
    """Over `n` sampled pairs. Mann-Whitney U (two-sided, scipy) and Cliff's delta compare the
    log-probabilities that the two runs give to the reference's most likely token; `mann_whitney_p`
    is None where the test is undefined (fewer than 2 pairs, or no variation).
    """

    n: int
    kl_median: float
    kl_p99: float
    kl_max: float
    argmax_agreement: float
    mann_whitney_u: float | None
    mann_whitney_p: float | None
    cliffs_delta: float | None

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


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
        len(pairs),
        float(np.median(kl)),
        float(np.quantile(kl, 0.99)),
        float(kl.max()),
        sum(p.argmax_equal for p in pairs) / len(pairs),
        u,
        p_value,
        delta,
    )
