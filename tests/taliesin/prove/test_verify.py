"""The verifier: says exact of a right graft, and not exact of each graft that is broken on
purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from taliesin.engine.embedded import Engine
from taliesin.engine.save import save_tokens
from taliesin.errors import RecipeMismatch, TaliesinError, UsageError
from taliesin.prove.shift import shift
from taliesin.prove.verify import Sabotage, verify
from taliesin.store.library import Library

pytestmark = pytest.mark.native

WRAPPED = 828  # the window wraps around the tiny model's ring here: see test_exactness


@pytest.fixture(scope="module")
def saved(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[..., Path]
) -> Iterator[tuple[Library, Path]]:
    model = tiny_model()
    with (
        Library(tmp_path_factory.mktemp("verify") / "library") as library,
        Engine(str(model)) as engine,
    ):
        ids = np.random.default_rng(0).integers(5, engine.model.n_vocab, 2 * 1024 + 20).tolist()
        save_tokens(engine, library, ids[:WRAPPED], "whole", align="whole")
        save_tokens(engine, library, ids, "aligned")
        yield library, model


def test_a_right_graft_is_exact(saved: tuple[Library, Path]) -> None:
    library, model = saved
    with library.open("whole") as block:
        report = verify(block, model, trials=2, n_steps=4)
    assert report.exact
    assert [
        (row.query_tokens, row.n_vectors, row.equal_block_then_query) for row in report.rows
    ] == [(1, 10, 10), (7, 10, 10), (64, 10, 10), (600, 10, 10)]
    assert report.statistics.kl_max == 0.0
    assert report.statistics.argmax_agreement == 1.0
    assert report.statistics.n == 40  # fewer than the 50 that were asked for: all there are


def test_grafts_are_held_against_fewer_references_where_asked(saved: tuple[Library, Path]) -> None:
    library, model = saved
    roles: list[tuple[str, int]] = []
    with library.open("whole") as block:
        report = verify(
            block,
            model,
            trials=3,
            fresh_trials=2,
            n_steps=1,
            lengths=(7,),
            one_shot=False,
            on_run=lambda role, run: roles.append((role, run.trial)),
        )
        with pytest.raises(UsageError):
            verify(block, model, trials=3, fresh_trials=0)
    assert report.exact
    assert report.rows[0].n_vectors == 6
    assert roles == [("fresh", 0), ("fresh", 1), ("graft", 0), ("graft", 1), ("graft", 2)]


def test_an_aligned_block_keeps_both_promises(saved: tuple[Library, Path]) -> None:
    library, model = saved
    with library.open("aligned") as block:
        report = verify(block, model, trials=1, n_steps=2, lengths=(1, 64))
    assert report.promise == "one-shot"
    assert report.block_then_query_holds
    assert report.one_shot_holds


@pytest.mark.parametrize("sabotage", [Sabotage.PLAIN_SWA, Sabotage.SHIFT, Sabotage.BITFLIP])
def test_a_broken_graft_is_caught(sabotage: Sabotage, saved: tuple[Library, Path]) -> None:
    library, model = saved
    with library.open("whole") as block:
        report = verify(block, model, trials=1, n_steps=6, lengths=(7,), sabotage=sabotage)
    assert not report.exact
    assert not report.block_then_query_holds
    assert report.statistics.kl_max > 0.0
    assert report.rows[0].first_difference is not None


def test_another_thread_count_is_caught_on_real_weights(smollm2: Path, tmp_path: Path) -> None:
    """Threads split the cells of a decode step from 512 cells on: a tiny model's sums may come out
    equal, real ones do not.
    """
    with Library(tmp_path / "library") as library, Engine(str(smollm2)) as engine:
        ids = np.random.default_rng(0).integers(10, 40_000, 600).tolist()
        save_tokens(engine, library, ids, "block")
        with library.open("block") as block:
            report = verify(
                block, smollm2, trials=1, n_steps=6, lengths=(1,), sabotage=Sabotage.THREADS
            )
    assert not report.exact


def test_plain_swa_is_refused_where_there_is_no_window(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    model = tiny_model(window=0)
    with Library(tmp_path / "library") as library, Engine(str(model)) as engine:
        save_tokens(engine, library, list(range(5, 100)), "block")
        with library.open("block") as block, pytest.raises(UsageError, match="window"):
            verify(block, model, sabotage=Sabotage.PLAIN_SWA)


def test_a_workers_error_comes_through_with_its_exit_code(
    saved: tuple[Library, Path], tiny_model: Callable[..., Path]
) -> None:
    library, _ = saved
    with (
        library.open("whole") as block,
        pytest.raises(TaliesinError, match="another model") as caught,
    ):
        verify(block, tiny_model(seed=2), trials=1, n_steps=0, lengths=(1,))
    assert caught.value.exit_code == RecipeMismatch.exit_code


@pytest.mark.parametrize(
    "counts", [{"trials": 0}, {"samples": 0}, {"n_steps": -1}, {"lengths": (0,)}]
)
def test_counts_out_of_range_are_refused(
    counts: dict[str, int], saved: tuple[Library, Path]
) -> None:
    library, model = saved
    with library.open("whole") as block, pytest.raises(UsageError):
        verify(block, model, **counts)  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [0, 128])
def test_a_moved_graft_differs_and_its_control_differs_too(
    window: int, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    with Library(tmp_path / "library") as library, Engine(str(tiny_model(window=window))) as engine:
        ids = np.random.default_rng(0).integers(5, engine.model.n_vocab, 300).tolist()
        save_tokens(engine, library, ids, "block")
        with library.open("block") as block:
            (result,) = shift(engine, block, (16,), n_queries=3, n_steps=2)
    assert result.moved.n == result.control.n == 9
    assert result.bit_equal < 9
    assert result.moved.kl_max > 0
    assert result.control.kl_max > 0
    assert "moved by 16" in result.statement
