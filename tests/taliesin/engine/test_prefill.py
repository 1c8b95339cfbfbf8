"""The prefix cache gives a cold run's bits, through generation, whatever was asked before; and the
comparison can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from taliesin.engine import certificate, llama
from taliesin.engine.embedded import Engine
from taliesin.engine.llama import Settings
from taliesin.engine.prefill import PrefixCache, Stopped, piece_names
from taliesin.engine.save import save
from taliesin.errors import ContextFull, RecipeMismatch, UnsupportedModel, UsageError
from taliesin.store.library import Library
from taliesin.store.pieces import PieceStore

pytestmark = pytest.mark.native

N_CTX = 2048
STEPS = 12
UBATCH = 64


def ids(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(261, 350, n).tolist()


@pytest.fixture(params=[128, 0], ids=["window", "plain"])
def engine(request: pytest.FixtureRequest, tiny_model: Callable[..., Path]) -> Iterator[Engine]:
    settings = Settings(n_ubatch=UBATCH, n_threads=1)
    with Engine(str(tiny_model(window=request.param)), settings) as engine:
        yield engine


@pytest.fixture
def cache(engine: Engine) -> Iterator[PrefixCache]:
    with PrefixCache(engine, N_CTX) as cache:
        yield cache


def cold(engine: Engine, prompt: Sequence[int], steps: int = STEPS) -> list[str]:
    """Digests of a cold run in a context of its own."""
    with engine.new_context(engine.settings, N_CTX) as context:
        return [certificate.digest(v) for v in llama.greedy(context, prompt, 0, steps)]


def warm(cache: PrefixCache, prompt: Sequence[int], steps: int = STEPS) -> tuple[list[str], int]:
    """Digests through the cache, and how many tokens it did not compute."""
    done = cache.prefill(prompt)
    digests = [certificate.digest(done.logits)]
    token, position = int(done.logits.argmax()), len(prompt)
    for logits in llama.greedy(done.context, [token], position, steps - 1):
        digests.append(certificate.digest(logits))
    return digests, done.reused


def test_conversations_turn_by_turn_equal_cold_runs(engine: Engine, cache: PrefixCache) -> None:
    rng = np.random.default_rng(7)
    system = ids(300, 1)
    talks = [list(system), list(system), ids(70, 2)]
    reused = 0
    for turn in range(14):
        talk = talks[int(rng.integers(0, 3))]
        talk += ids(int(rng.integers(1, 150)), 100 + turn)
        steps = int(rng.choice([2, STEPS, 90]))  # 90 runs over the window's spare cells
        expected = cold(engine, talk, steps)
        digests, n = warm(cache, talk, steps)
        assert digests == expected, f"turn {turn}, {len(talk)} tokens, {n} reused"
        assert n % UBATCH == 0
        reused += n
        talk += ids(steps, 200 + turn)
    assert reused > 2000


def test_a_long_answer_is_taken_back_in_place(engine: Engine, cache: PrefixCache) -> None:
    """On a window model the answer went over cells of the window: they come back from memory, and
    the ordinary rows stay.
    """
    prompt = ids(700, 3)
    warm(cache, prompt, 300)
    following = [*prompt, *ids(40, 4)]
    expected = cold(engine, following)
    done = cache.prefill(following)
    assert (done.place, done.reused) == ("live", 640)
    digests = [certificate.digest(done.logits)]
    token = int(done.logits.argmax())
    digests += [
        certificate.digest(v)
        for v in llama.greedy(done.context, [token], len(following), STEPS - 1)
    ]
    assert digests == expected


@pytest.mark.parametrize("n_tokens", [1, UBATCH, UBATCH + 1, 4 * UBATCH, 4 * UBATCH + 1])
def test_prompts_at_the_borders_of_pieces(
    engine: Engine, cache: PrefixCache, n_tokens: int
) -> None:
    prompt = ids(n_tokens, 5)
    expected = cold(engine, prompt)
    assert warm(cache, prompt) == (expected, 0)
    cache.commit()
    digests, reused = warm(cache, prompt)
    assert digests == expected
    assert reused == (n_tokens - 1) // UBATCH * UBATCH  # a token is always left to compute


def test_another_conversation_between_is_no_loss(engine: Engine, cache: PrefixCache) -> None:
    first, second = ids(400, 6), ids(500, 7)
    expected = cold(engine, first)
    warm(cache, first)
    warm(cache, second)
    assert cache.common(first) == 384
    digests, reused = warm(cache, first)
    assert (digests, reused) == (expected, 384)
    assert cache.hits["memory"] == 384


def test_without_memory_only_the_live_context_is_reused(engine: Engine) -> None:
    with PrefixCache(engine, N_CTX, memory_bytes=0) as cache:
        prompt = ids(200, 8)
        warm(cache, prompt, 2)
        expected = cold(engine, [*prompt, 300])
        digests, reused = warm(cache, [*prompt, 300])
        assert digests == expected
        assert reused == 192
        warm(cache, ids(100, 9))
        assert warm(cache, prompt)[1] == 0


def test_a_small_budget_evicts_leaves_before_parents(engine: Engine) -> None:
    prompt = ids(1000, 10)
    with PrefixCache(engine, N_CTX) as measured:
        warm(measured, prompt)
        measured.commit()
        piece = measured.memory.used_bytes // 15
    with PrefixCache(engine, N_CTX, memory_bytes=6 * piece) as cache:
        expected = cold(engine, prompt)
        warm(cache, prompt)
        warm(cache, ids(30, 11))
        assert cache.memory.evicted == 9
        assert cache.common(prompt) == 6 * UBATCH  # the first six, not the last
        assert warm(cache, prompt) == (expected, 6 * UBATCH)


def test_a_stopped_prefill_keeps_what_it_computed(engine: Engine, cache: PrefixCache) -> None:
    prompt = ids(400, 12)
    seen: list[int] = []
    with pytest.raises(Stopped, match="stopped"):
        cache.prefill(
            prompt,
            on_piece=lambda done, _all: seen.append(done),
            should_stop=lambda: len(seen) == 3,
        )
    assert seen == [64, 128, 192]
    expected = cold(engine, prompt)
    assert warm(cache, prompt) == (expected, 192)


def test_somebody_else_in_the_context_is_noticed(engine: Engine, cache: PrefixCache) -> None:
    prompt = ids(300, 13)
    warm(cache, prompt)
    cache.commit()
    cache.context.clear()
    cache.context.decode(ids(90, 14), 0)
    expected = cold(engine, prompt)
    assert warm(cache, prompt) == (expected, 256)
    assert cache.hits["live"] == 0


def test_the_comparison_can_fail(engine: Engine, cache: PrefixCache) -> None:
    """Controls: a piece with one changed row, and generated cells kept as if they had been
    prefilled, both give other bits.
    """
    prompt = ids(700, 15)
    expected = cold(engine, prompt)
    warm(cache, prompt)
    cache.commit()
    name = piece_names(cache.recipe_id, np.asarray(prompt, np.int32), UBATCH)[1]
    payload = cache.memory.get(name)
    assert payload is not None
    broken = bytearray(payload)
    broken[100] ^= 0x40
    cache.memory.keep(name, bytes(broken))
    warm(cache, ids(10, 16))
    assert warm(cache, prompt)[0] != expected


def test_generated_cells_would_give_other_bits(engine: Engine, cache: PrefixCache) -> None:
    """Why generated positions are never stored: one by one they are computed otherwise than in
    pieces.
    """
    prompt = ids(100, 17)
    done = cache.prefill(prompt)
    answer, logits = [], done.logits
    for position in range(len(prompt), len(prompt) + 60):
        answer.append(int(logits.argmax()))
        following = done.context.decode(answer[-1:], position)
        assert following is not None
        logits = following
    expected = cold(engine, [*prompt, *answer, 300])
    after = done.context.decode([300], len(prompt) + 60)
    assert after is not None
    kept = [certificate.digest(after)]
    assert kept != expected[:1]
    assert warm(cache, [*prompt, *answer, 300])[0] == expected


def test_pieces_move_through_a_store_to_another_cache(engine: Engine) -> None:
    class Shelf(dict[str, bytes]):
        def holds(self, name: str) -> bool:
            return name in self

        def read(self, name: str) -> bytes | None:
            return self.get(name)

        def put(self, name: str, parent: str, ids: Sequence[int], payload: bytes) -> None:
            assert parent == "" or parent in self
            assert len(ids) == UBATCH
            self[name] = payload

        def used(self, names: Sequence[str]) -> None:
            assert set(names) <= set(self)

    shelf = Shelf()
    prompt = ids(500, 18)
    expected = cold(engine, prompt)
    with PrefixCache(engine, N_CTX, store=shelf) as cache:
        warm(cache, prompt)
        cache.commit()
    assert len(shelf) == 7
    with PrefixCache(engine, N_CTX, store=shelf) as cache:
        done = cache.prefill(prompt)
        assert (done.place, done.reused) == ("disk", 448)
        assert certificate.digest(done.logits) == expected[0]
    # A missing ancestor is a miss from there on; so is a payload of another size.
    names = piece_names(cache.recipe_id, np.asarray(prompt, np.int32), UBATCH)
    shelf[names[3]] = shelf[names[3]][:-5] if engine.model.window == 0 else b"x"
    del shelf[names[5]]
    with PrefixCache(engine, N_CTX, store=shelf) as cache:
        assert warm(cache, prompt) == (expected, 192)


def test_pieces_go_to_the_store_without_memory_and_from_adopted_blocks(
    engine: Engine, tmp_path: Path
) -> None:
    """What follows a piece that the store does not have could never be used."""
    prompt = ids(300, 26)
    longer = [*prompt, *ids(200, 27)]
    expected = cold(engine, longer)
    with (
        PrefixCache(engine, N_CTX, memory_bytes=0) as cache,
        PieceStore(tmp_path / "one", cache.recipe_id, budget_bytes=1 << 30) as store,
    ):
        cache.store = store
        warm(cache, prompt)
        assert warm(cache, longer) == (expected, 256)
        cache.commit()
        store.flush()
        assert (len(store.files.held()), store.left_out) == (7, 0)
    with Library(tmp_path / "library") as library:
        save(engine, library, "".join(chr(97 + i % 26) for i in ids(700, 28)), "notes")
        engine.drop_context()
        with (
            library.open("notes") as block,
            PrefixCache(engine, N_CTX) as cache,
            PieceStore(tmp_path / "two", cache.recipe_id, budget_bytes=1 << 30) as store,
        ):
            cache.store = store
            n = cache.adopt(block, verify=True)
            assert warm(cache, [*block.header.tokens.tolist(), *ids(100, 29)])[1] == n
            cache.commit()
            store.flush()
            assert len(store.files.held()) == (0 if engine.model.window else n // UBATCH + 1)


def test_errors(cache: PrefixCache) -> None:
    with pytest.raises(UsageError, match="nothing to prefill"):
        cache.prefill([])
    with pytest.raises(ContextFull):
        cache.prefill(ids(N_CTX + 1, 19))
    assert cache.prefill(ids(10, 20)).n_tokens == 10


def test_without_flash_attention_there_is_no_cache(tiny_model: Callable[..., Path]) -> None:
    settings = Settings(n_ubatch=UBATCH, n_threads=1, flash_attn=False)
    with (
        Engine(str(tiny_model(window=0)), settings) as engine,
        pytest.raises(UnsupportedModel, match="flash attention"),
    ):
        PrefixCache(engine, N_CTX)


def test_a_saved_block_becomes_pieces(engine: Engine, tmp_path: Path) -> None:
    """Its end can be restored; with window layers no boundary inside it, and never wrong bits."""
    text = "".join(chr(97 + i % 26) for i in ids(900, 21))
    with Library(tmp_path / "library") as library:
        save(engine, library, text, "notes")
        save(engine, library, text[:100], "short")
        engine.drop_context()
        with library.open("notes") as block, PrefixCache(engine, N_CTX) as cache:
            n = cache.adopt(block, verify=True)
            tokens = block.header.tokens.tolist()
            for prompt in ([*tokens, 300, 301], tokens[: 5 * UBATCH] + ids(30, 22)):
                expected = cold(engine, prompt)
                digests, reused = warm(cache, prompt)
                assert digests == expected
                assert reused == (n if len(prompt) > n else 0 if engine.model.window else 320)
            # What was computed since makes the block's beginning whole.
            warm(cache, ids(10, 23))
            assert cache.common(tokens[: 5 * UBATCH + 1]) == 320
            with library.open("short") as short, pytest.raises(UsageError, match="no cold run"):
                cache.adopt(short, verify=True)
        with (
            library.open("notes") as block,
            PrefixCache(engine, N_CTX, settings=Settings(n_ubatch=128, n_threads=1)) as other,
            pytest.raises(RecipeMismatch),
        ):
            other.adopt(block, verify=True)


def test_another_process_finds_the_pieces_on_disk(engine: Engine, tmp_path: Path) -> None:
    prompts = [ids(500, 24), [*ids(500, 24)[:300], *ids(100, 25)]]
    expected = [cold(engine, prompt) for prompt in prompts]

    def opened(stack: ExitStack) -> PrefixCache:
        cache = stack.enter_context(PrefixCache(engine, N_CTX))
        cache.store = stack.enter_context(
            PieceStore(tmp_path / "pieces", cache.recipe_id, budget_bytes=1 << 30)
        )
        return cache

    with ExitStack() as stack:
        cache = opened(stack)
        assert [warm(cache, prompt) for prompt in prompts] == [
            (expected[0], 0),
            (expected[1], 256),
        ]
        cache.commit()
    with ExitStack() as stack:
        cache = opened(stack)
        assert warm(cache, prompts[1]) == (expected[1], 384)
        # The live context has the first 256 tokens of this one, the disk more.
        assert warm(cache, prompts[0]) == (expected[0], 448)
        assert cache.hits["disk"] == 384 + 448
        assert isinstance(cache.store, PieceStore)
        # A damaged piece is a miss from there on, and the bits are right.
        name = piece_names(cache.recipe_id, np.asarray(prompts[0], np.int32), UBATCH)[2]
        path = cache.store.files.path(name)
        path.write_bytes(path.read_bytes()[:-1])
    with ExitStack() as stack:
        cache = opened(stack)
        assert warm(cache, prompts[0]) == (expected[0], 128)
