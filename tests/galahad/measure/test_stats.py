"""Intervals and tests against published values and against their own definitions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galahad.measure.stats import PairedDifference, PairedOutcomes, Proportion


def test_wilson_interval_of_fifteen_out_of_fifteen() -> None:
    found = Proportion.of(15, 15)
    assert (round(found.low, 3), found.high) == (0.796, 1.0)
    assert str(found).startswith("15/15 = 100.0% (Wilson 95 %: 79.6% to 100.0%, n = 15)")


def test_no_trial_says_nothing() -> None:
    assert (Proportion.of(0, 0).low, Proportion.of(0, 0).high) == (0.0, 1.0)
    assert str(Proportion.of(0, 0)) == "0/0"


@given(st.integers(0, 200), st.integers(0, 200))
@settings(max_examples=50, deadline=None)
def test_interval_holds_the_share(a: int, b: int) -> None:
    k, n = min(a, b), max(a, b, 1)
    found = Proportion.of(k, n)
    assert 0 <= found.low <= k / n + 1e-12
    assert k / n - 1e-12 <= found.high <= 1 + 1e-12


def test_mcnemar_is_the_binomial_test_of_the_discordant_pairs() -> None:
    first = [True] * 10 + [False] * 8 + [True] + [False]
    second = [True] * 10 + [True] * 8 + [False] + [False]
    found = PairedOutcomes.of(first, second)
    assert (found.both, found.only_first, found.only_second, found.neither) == (10, 1, 8, 1)
    assert found.p == pytest.approx(2 * (1 + 9) / 2**9)
    assert "McNemar exact" in str(found)


def test_equal_arms_have_p_one() -> None:
    assert PairedOutcomes.of([True, False], [True, False]).p == 1.0
    assert PairedOutcomes.of([], []).n == 0


def test_too_few_discordant_pairs_cannot_decide() -> None:
    found = PairedOutcomes.of([False] * 4, [True] * 4)
    assert found.p == pytest.approx(found.smallest_p) == pytest.approx(0.125)


def test_pairs_have_equal_length() -> None:
    with pytest.raises(ValueError, match="zip"):
        PairedOutcomes.of([True], [])
    with pytest.raises(ValueError, match="no pair"):
        PairedDifference.of([], [], seed=0)


def test_difference_depends_on_its_seed_alone() -> None:
    a, b = [1.0, 2.0, 3.0, 9.0], [2.0, 2.5, 3.5, 4.0]
    assert PairedDifference.of(a, b, seed=7) == PairedDifference.of(a, b, seed=7)
    found = PairedDifference.of(a, b, seed=7)
    assert found.mean == pytest.approx(-0.75)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.mean <= found.high


def test_difference_without_spread_has_no_interval() -> None:
    same = PairedDifference.of([1.0, 2.0], [1.0, 2.0], seed=0)
    assert (same.low, same.p) == (None, None)
    assert "no pair differs" in str(same)
    assert PairedDifference.of([1.0, 2.0], [3.0, 4.0], seed=0).low is None
