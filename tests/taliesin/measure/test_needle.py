"""Numbers lie where they should, blocks are made once, and a read is right only if it is equal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from taliesin.cli import app
from taliesin.engine.embedded import Engine
from taliesin.engine.llama import Settings
from taliesin.engine.tiers import Tiers
from taliesin.errors import UsageError
from taliesin.measure import corpus, needle
from taliesin.measure.needle import Hunt
from taliesin.store.library import Library


def test_the_corpus_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    assert corpus.passage(1, 2, 30) == corpus.passage(1, 2, 30)
    assert len({corpus.passage(seed, index, 30) for seed in (1, 2) for index in (1, 2)}) == 4


def test_the_slope_of_equal_times_is_zero_within_its_interval() -> None:
    flat = needle.slope([0, 10, 20, 30], [1.0, 1.1, 0.9, 1.0])
    assert flat is not None
    assert flat.low < 0 < flat.high
    assert not flat.grows
    steep = needle.slope([0, 10, 20, 30], [1.0, 2.0, 3.01, 4.0])
    assert steep is not None
    assert steep.grows
    assert needle.slope([0, 10], [1.0, 2.0]) is None


@pytest.fixture
def engine(tiny_model: Callable[..., Path]) -> Iterator[Engine]:
    with Engine(str(tiny_model()), Settings(n_ubatch=128, n_threads=1)) as engine:
        yield engine


@pytest.mark.native
def test_every_number_lies_in_its_block_and_at_its_depth(engine: Engine, tmp_path: Path) -> None:
    with Library(tmp_path / "library") as library:
        hunt = Hunt(engine, library, n_tokens=4800, n_blocks=6, depths=4)
        assert [n.depth for n in hunt.needles] == [0, 1600, 3199, 4799]
        for block in range(6):
            ids = hunt.tokens(block)
            assert len(ids) == hunt.block_tokens == 800
            text = engine.model.text(ids)
            for found in hunt.needles:
                assert (found.sentence in text) == (found.block == block)
                if found.block == block:
                    offset = len(
                        engine.model.tokenize(text[: text.index(found.sentence)], special=False)
                    )
                    assert abs(offset - (found.depth - 800 * block)) < 200


@pytest.mark.native
def test_blocks_are_made_once_and_again_only_if_they_differ(engine: Engine, tmp_path: Path) -> None:
    with Library(tmp_path / "library") as library:
        hunt = Hunt(engine, library, n_tokens=600, n_blocks=2, depths=2)
        assert hunt.save() == (2, 0)
        library.remove(hunt.name(1))
        assert hunt.save() == (1, 1)
        other = Hunt(engine, library, n_tokens=600, n_blocks=2, depths=1)  # under the same names
        assert other.save() == (1, 1)


@pytest.mark.native
def test_each_question_is_routed_to_the_block_of_its_number(engine: Engine, tmp_path: Path) -> None:
    with Library(tmp_path / "library") as library:
        hunt = Hunt(engine, library, n_tokens=1500, n_blocks=5, depths=3)
        hunt.save()
        with Tiers(engine, library) as tiers:
            reads = list(hunt.read(tiers))
        for read, hidden in zip(reads, hunt.needles, strict=True):
            assert read.routed == hunt.name(hidden.block)
            assert read.correct == (read.answer == hidden.number)
            assert read.answer.isdigit()
        report = hunt.report(reads, 5, 0, 1.0)
        assert report.library_bytes > 0
        assert report.peak_bytes > 0
        assert report.as_dict()["n_correct"] == sum(read.correct for read in reads)


@pytest.mark.native
def test_blocks_longer_than_the_context_are_refused_with_a_number_that_fits(
    engine: Engine, tmp_path: Path
) -> None:
    with (
        Library(tmp_path / "library") as library,
        pytest.raises(UsageError, match="do not fit") as caught,
    ):
        Hunt(engine, library, n_tokens=100_000, n_blocks=2)
    assert caught.value.hint is not None
    assert "--blocks 13" in caught.value.hint


@pytest.mark.native
def test_a_number_that_is_not_read_right_exits_three(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    arguments = [
        "needle",
        "--model",
        str(tiny_model()),
        "--tokens",
        "600",
        "--blocks",
        "2",
        "--depths",
        "2",
    ]
    options = [
        "--threads",
        "1",
        "--ubatch",
        "128",
        "--library",
        str(tmp_path / "library"),
        "--json",
    ]
    result = CliRunner().invoke(app, [*arguments, *options, "--out", str(tmp_path / "needle")])
    assert result.exit_code == 3, result.output  # random weights cannot read
    document = json.loads(result.stdout)
    assert document["n_correct"] == 0
    assert len(document["reads"]) == 2
    assert (tmp_path / "needle.md").read_text().startswith("# Needles")


@pytest.mark.slow
def test_a_real_model_reads_numbers_from_two_thousand_tokens(smollm2: Path, tmp_path: Path) -> None:
    with Engine(str(smollm2)) as engine, Library(tmp_path / "library") as library:
        hunt = Hunt(engine, library, n_tokens=8000, n_blocks=4, depths=4)
        hunt.save()
        with Tiers(engine, library) as tiers:
            assert all(read.correct for read in hunt.read(tiers))
