"""`--ubatch auto`: the smallest size that is nearly the quickest, measured once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from taliesin.engine.embedded import Engine
from taliesin.engine.llama import Settings
from taliesin.measure import ubatch


def test_the_smallest_of_those_that_are_nearly_the_quickest() -> None:
    assert ubatch.smallest_quick({64: 80.0, 128: 91.0, 256: 100.0, 512: 99.0}) == 128
    assert ubatch.smallest_quick({64: 99.0, 128: 91.0, 256: 100.0, 512: 99.0}) == 64
    assert ubatch.smallest_quick({64: 1.0, 128: 2.0, 256: 3.0, 512: 4.0}) == 512


@pytest.mark.native
def test_a_choice_is_measured_once_and_kept_for_its_recipe(
    tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    with Engine(str(tiny_model()), Settings(n_threads=1)) as engine:
        sizes: list[int] = []
        first = ubatch.choose(engine, tmp_path, sizes.append)
        assert set(sizes) == set(ubatch.SIZES)
        assert first.n_ubatch in ubatch.SIZES
        assert all(speed > 0 for speed in first.speeds.values())
        measured = len(sizes)
        assert ubatch.choose(engine, tmp_path, sizes.append) == first
        assert len(sizes) == measured
        (kept,) = tmp_path.iterdir()
        kept.write_text("{")
        ubatch.choose(engine, tmp_path, sizes.append)  # a damaged one is measured again
        assert len(sizes) > measured
        engine.settings = Settings(n_threads=2)
        ubatch.choose(engine, tmp_path)
        assert len(list(tmp_path.iterdir())) == 2
