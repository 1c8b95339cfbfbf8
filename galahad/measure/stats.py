"""The statistics that reports state, each with its method and its n; a thin layer over scipy.

Deliberately does not decide: a p-value and an interval are given, and the reader is told how they
were made. Randomness takes a seed from the caller.
"""

from __future__ import annotations

from collections.abc import Sequence

from taliesin.host.findings import Amount, Fraction, share
from taliesin.host.records import Record

CONFIDENCE_LEVEL = 0.95
_RESAMPLES = 9999


class Proportion(Record):
    """`k` of `n` with the Wilson interval [`low`, `high`] at 95 %; all in 0..1. `n` may be 0: then
    nothing is known.
    """

    k: Amount
    n: Amount
    low: Fraction
    high: Fraction

    @classmethod
    def of(cls, k: int, n: int) -> Proportion:
        if n == 0:
            return cls(k=0, n=0, low=0.0, high=1.0)
        from scipy.stats import binomtest

        interval = binomtest(k, n).proportion_ci(confidence_level=CONFIDENCE_LEVEL, method="wilson")
        return cls(k=k, n=n, low=float(interval.low), high=float(interval.high))

    @property
    def short(self) -> str:
        """Without its n, which is there in front."""
        return f"{share(self.k, self.n)} (Wilson 95 %: {self.low:.1%} to {self.high:.1%})"

    def __str__(self) -> str:
        if self.n == 0:
            return "0/0"
        share = f"{self.k}/{self.n} = {self.k / self.n:.1%}"
        return f"{share} (Wilson 95 %: {self.low:.1%} to {self.high:.1%}, n = {self.n})"


class PairedOutcomes(Record):
    """Right or wrong of the same problems under two arms. `p` is McNemar's, exact and two-sided.

    n: pairs; only_first, only_second: pairs that one arm alone got right. The test looks at those
    only: with few of them no difference can be shown, whatever it is.
    """

    n: int
    both: int
    only_first: int
    only_second: int
    neither: int
    p: float

    @classmethod
    def of(cls, first: Sequence[bool], second: Sequence[bool]) -> PairedOutcomes:
        """`first[i]` and `second[i]` are of the same problem.

        Raises:
            ValueError: of different lengths.
        """
        pairs = list(zip(first, second, strict=True))
        b = sum(x and not y for x, y in pairs)
        c = sum(y and not x for x, y in pairs)
        p = 1.0
        if b + c:
            from scipy.stats import binomtest

            # Under no difference each discordant pair falls to either side with probability 1/2.
            p = float(binomtest(b, b + c).pvalue)
        return cls(
            n=len(pairs),
            both=sum(x and y for x, y in pairs),
            only_first=b,
            only_second=c,
            neither=sum(not (x or y) for x, y in pairs),
            p=p,
        )

    @property
    def smallest_p(self) -> float:
        """What `p` would be if every discordant pair fell to one side: above the level, the data
        cannot decide.
        """
        return min(1.0, 2.0 ** (1 - self.only_first - self.only_second))

    def __str__(self) -> str:
        n = self.only_first + self.only_second
        return (
            f"{self.only_first} right only before, {self.only_second} only after, of {self.n} "
            f"pairs; "
            f"McNemar exact, two-sided, {n} discordant: p = {self.p:.3g}"
        )


class PairedDifference(Record):
    """Mean of `second - first` over pairs, with its bootstrap interval at 95 % and Wilcoxon's
    signed-rank p.

    The interval is None for fewer than two pairs or where all differences are equal (there is then
    no spread to resample), p is None where no pair differs.
    """

    n: int
    mean: float
    low: float | None
    high: float | None
    p: float | None

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float], seed: int) -> PairedDifference:
        """Raises ValueError: of different lengths, or no pair."""
        import numpy as np
        from scipy.stats import bootstrap, wilcoxon

        # (n,)
        difference = np.array([b - a for a, b in zip(first, second, strict=True)], dtype=np.float64)
        if not len(difference):
            raise ValueError("no pair")
        low = high = p = None
        if len(difference) > 1 and np.ptp(difference) > 0:
            interval = bootstrap(
                (difference,),
                np.mean,
                n_resamples=_RESAMPLES,
                confidence_level=CONFIDENCE_LEVEL,
                method="percentile",
                rng=np.random.default_rng(seed),
            ).confidence_interval
            low, high = float(interval.low), float(interval.high)
        if np.any(difference):
            p = float(wilcoxon(difference, zero_method="wilcox").pvalue)
        return cls(n=len(difference), mean=float(difference.mean()), low=low, high=high, p=p)

    def __str__(self) -> str:
        interval = (
            "no interval"
            if self.low is None or self.high is None
            else f"percentile bootstrap 95 %, {_RESAMPLES} resamples: {self.low:+.4g} to "
            f"{self.high:+.4g}"
        )
        test = "no pair differs" if self.p is None else f"Wilcoxon signed-rank p = {self.p:.3g}"
        return f"{self.mean:+.4g} on average ({interval}; {test}; n = {self.n})"
