"""The simulator: counts that can be checked by hand, trees that stay trees, and nothing better than
the optimum.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taliesin.measure.simulate import POLICIES, plot, simulate
from taliesin.measure.traces import Hashed


def request(*pieces: object, prompt: int | None = None) -> Hashed:
    return Hashed(list(pieces), 10, len(pieces) * 10 if prompt is None else prompt)


def test_a_trace_counted_by_hand() -> None:
    trace = [request("a", "b"), request("a", "c"), request("a", "b", prompt=17)]
    unlimited, tight = simulate(trace, [0.7], ["lru"])
    assert (unlimited.hit, unlimited.prompt, unlimited.written) == (10 + 17, 57, 3)
    # two pieces: c takes the place of b, and the last request finds a alone
    assert (tight.budget, tight.hit, tight.written, tight.evicted) == (2, 20, 4, 2)
    assert tight.rate == 20 / 57


def tree(seed: int) -> list[Hashed]:
    """Conversations that grow in turns, over one beginning; a name says its whole chain."""
    rng = random.Random(seed)
    talks = [["s"] for _ in range(8)]
    trace = []
    for _ in range(60):
        talk = rng.choice(talks)
        for _ in range(rng.randint(1, 4)):
            talk.append(f"{talk[-1]}{rng.randrange(3)}")
        trace.append(request(*talk))
    return trace


@given(seed=st.integers(0, 1000), share=st.sampled_from([0.05, 0.2, 0.5]))
def test_no_policy_keeps_a_child_without_its_parent_or_beats_the_future(
    seed: int, share: float
) -> None:
    trace = tree(seed)
    lines = {line.policy: line for line in simulate(trace, [share])}
    for name, line in lines.items():
        assert line.hit <= lines["unlimited"].hit
        assert line.written - line.evicted <= (line.budget or line.written)
        if name in POLICIES:
            policy = POLICIES[name](trace)
            for number, asked in enumerate(trace):
                policy.use(asked.pieces, number)
                while len(policy) > 12:
                    policy.evict()
                for other in trace[: number + 1]:
                    held = [piece in policy for piece in other.pieces]
                    assert held == sorted(held, reverse=True)
    assert lines["optimum"].hit >= lines["lru"].hit


def test_a_plot_is_the_same_file_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    lines = simulate(tree(1), [0.1, 0.5])
    for name in ("a.svg", "b.svg"):
        plot(lines, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()
