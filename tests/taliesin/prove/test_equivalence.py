"""Bits first: what counts as equal, and that the statistics say 0 only for equal vectors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from taliesin.prove.equivalence import compare, log_softmax, statistics

vectors = hnp.arrays(np.float32, st.integers(2, 50), elements=st.floats(-30, 30, width=32))


@given(vectors)
def test_a_vector_equals_itself_with_kl_exactly_zero(v: np.ndarray) -> None:
    pair = compare(v, v.copy())
    assert pair.equal
    assert pair.kl == 0.0
    assert pair.worst == 0.0


@given(vectors)
def test_log_softmax_sums_to_one(v: np.ndarray) -> None:
    assert np.exp(log_softmax(v)).sum() == pytest.approx(1.0, abs=1e-12)


def test_one_bit_is_a_difference() -> None:
    v = np.linspace(-3, 3, 100, dtype=np.float32)
    w = v.copy()
    w.view(np.uint32)[40] ^= 1
    pair = compare(v, w)
    assert not pair.equal
    assert 0 < pair.worst < 1e-6
    assert pair.argmax_equal


def test_minus_zero_is_not_zero() -> None:
    assert not compare(np.array([0.0, 1.0], np.float32), np.array([-0.0, 1.0], np.float32)).equal


def test_equal_samples_give_p_one_and_delta_zero() -> None:
    rng = np.random.default_rng(1)
    rows = [rng.normal(size=64).astype(np.float32) for _ in range(20)]
    s = statistics([compare(v, v.copy()) for v in rows])
    assert (s.kl_median, s.kl_p99, s.kl_max, s.argmax_agreement) == (0, 0, 0, 1)
    assert s.mann_whitney_p == 1.0
    assert s.cliffs_delta == 0.0


def test_shifted_samples_are_told_apart() -> None:
    rng = np.random.default_rng(1)
    rows = [rng.normal(size=64).astype(np.float32) for _ in range(40)]
    s = statistics([compare(v, v * np.float32(0.2)) for v in rows])
    assert s.mann_whitney_p is not None
    assert s.mann_whitney_p < 1e-6
    assert s.cliffs_delta is not None
    assert abs(s.cliffs_delta) > 0.5


def test_one_sample_has_no_test() -> None:
    v = np.zeros(4, np.float32)
    assert statistics([compare(v, v)]).mann_whitney_p is None
