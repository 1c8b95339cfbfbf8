"""The model in this process: a graft changes no token, whatever was asked before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from galahad.answerer.answerer import (
    BlockPrefix,
    Request,
    Sampling,
    SharedPrefix,
    in_order,
    one,
)
from galahad.answerer.embedded import Embedded
from taliesin.engine.llama import Settings
from taliesin.errors import ContextFull, UsageError
from taliesin.store.library import Library

CATS = "How many legs have three cats?"


def embedded(model: Path, prefixes: Path | None, n_ctx: int | None) -> Embedded:
    # One thread: two that share a busy core wait for each other.
    settings = Settings(n_threads=1)
    return Embedded(model=str(model), settings=settings, n_ctx=n_ctx, prefixes=prefixes)


def after(name: str, question: str, max_tokens: int, **sampling: Any) -> Request:
    return Request(
        prefix=SharedPrefix(name),
        question=question,
        max_tokens=max_tokens,
        sampling=Sampling(**sampling),
    )


@pytest.mark.native
def test_a_graft_gives_the_tokens_of_a_prefill(smollm2: Path, tmp_path: Path) -> None:
    prefixes = {
        "one": "Answer with a number and nothing else. " * 4,
        "two": "Write one line of Python. " * 4,
    }
    texts = {}
    for graft in (True, False):
        answerer = embedded(smollm2, tmp_path / "prefixes" if graft else None, 512)
        try:
            saved = answerer.prepare(prefixes)
            assert set(saved) == (set(prefixes) if graft else set())
            found = [
                one(answerer, after(name, CATS, 6, temperature=t, seed=seed))
                for name, t, seed in [
                    ("one", 0.0, 1),
                    ("two", 0.9, 5),
                    ("one", 0.9, 5),
                    ("one", 0.9, 6),
                    ("two", 0.9, 5),
                ]
            ]
            program = replace(after("two", "Print 7.", 12), opening="```python\n", end="\n")
            ended = one(answerer, program)
        finally:
            answerer.close()
        texts[graft] = [f.text for f in found]
        assert texts[graft][1] == texts[graft][4]
        assert texts[graft][2] != texts[graft][3]
        assert ended.text.startswith("```python\n")
        assert ended.text.count("\n") <= 2
        if graft:
            assert [f.n_reused for f in found] == [
                saved[n].n_tokens for n in ("one", "two", "one", "one", "two")
            ]
        else:
            assert {f.n_reused for f in found} == {0}
            assert found[0].n_prefilled > 40
    assert texts[True] == texts[False]


@pytest.mark.native
@pytest.mark.parametrize("window", [0, 128])
def test_a_prefix_is_put_back_exactly_after_every_question(
    window: int, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    prefixes = {"short": "Answer with a number. " * 4, "long": "Write one line of Python. " * 40}
    questions = (CATS, "Why? " * 60, CATS)
    texts = {}
    for graft in (True, False):
        answerer = embedded(
            tiny_model(window=window), tmp_path / "prefixes" if graft else None, 2048
        )
        try:
            answerer.prepare(prefixes)
            texts[graft] = [
                one(answerer, after(name, question, 8, temperature=0.9, seed=3)).text
                for name in ("short", "long", "short")
                for question in questions
            ]
        finally:
            answerer.close()
    assert texts[True] == texts[False]
    assert texts[True][0] == texts[True][2] == texts[True][6]


@pytest.mark.native
def test_requests_of_every_kind_do_not_disturb_each_other(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """One answerer, as a night of solve, bank and recall would use it: the same request gives the
    same text whatever lay in the context before, also where that had to be made anew.
    """
    with (
        closing(embedded(tiny_model(), tmp_path / "prefixes", None)) as answerer,
        Library(tmp_path / "library") as library,
    ):
        answerer.prepare({"short": "Answer with a number. " * 4})
        answerer.save(library, "b", "Verified answer: 703. " * 30, "b")
        sampling = Sampling(temperature=0.9, seed=5)
        behind = Request(
            prefix=BlockPrefix(library, "b"), question=CATS, max_tokens=8, sampling=sampling
        )
        alone = Request(question=CATS, max_tokens=8, sampling=sampling)
        shared = after("short", CATS, 8, temperature=0.9, seed=5)
        long = Request(question="Why? " * 400, max_tokens=8)
        kinds = (shared, behind, alone)
        first = [one(answerer, request).text for request in kinds]
        for disturbance in (*kinds, long):
            one(answerer, disturbance)
            assert [c.text for c in in_order(answerer, kinds)] == first
        assert len(set(first)) > 1


@pytest.mark.native
def test_a_request_that_does_not_fit_is_a_completion_and_the_next_goes_on(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    with closing(embedded(tiny_model(), tmp_path / "prefixes", 512)) as answerer:
        answerer.prepare({"p": "Answer with a number. "})
        requests = [after("p", "Why? " * 2000, 8), after("p", CATS, 8)]
        full, fits = answerer.complete(requests)
        assert isinstance(full.error, ContextFull)
        assert full.request is requests[0]
        assert (fits.error, fits.n_out > 0, fits.energy is not None) == (None, True, True)
        with pytest.raises(ContextFull):
            in_order(answerer, requests)
        with pytest.raises(UsageError, match="no shared prefix"):
            one(answerer, after("q", CATS, 8))
