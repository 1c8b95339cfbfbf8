"""Memory for states: lent memory is nobody else's, filler is zero whatever was there before, and
locking is tried once.
"""

from __future__ import annotations

import gc
import mmap
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taliesin.engine import certificate, graft, llama
from taliesin.engine.embedded import Engine
from taliesin.engine.llama import Settings
from taliesin.engine.save import save_tokens
from taliesin.engine.staging import Staging, fresh
from taliesin.engine.tiers import Tiers
from taliesin.host import pagelock
from taliesin.state.placement import Restore
from taliesin.store.library import Library

MEGABYTE = 1 << 20
PAGE = mmap.PAGESIZE


class FakeLocks:
    """`pagelock` without a GPU: which addresses are locked; a lock twice or an unlock of what is
    not locked is an error.
    """

    def __init__(self, works: bool = True) -> None:
        self.works, self.tried, self.held = works, 0, set[int]()

    def lock(self, buffer: memoryview) -> bool:
        self.tried += 1
        assert pagelock.address(buffer) not in self.held
        if self.works:
            self.held.add(pagelock.address(buffer))
        return self.works

    def unlock(self, buffer: memoryview) -> None:
        self.held.remove(pagelock.address(buffer))


@pytest.fixture
def locks(monkeypatch: pytest.MonkeyPatch) -> FakeLocks:
    fake = FakeLocks()
    monkeypatch.setattr(pagelock, "lock", fake.lock)
    monkeypatch.setattr(pagelock, "unlock", fake.unlock)
    return fake


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_filler_that_is_only_read_takes_no_memory() -> None:
    before = resident_bytes()
    zeros = fresh(64 * MEGABYTE, [(0, 60 * MEGABYTE)])
    assert not any(zeros[::PAGE])
    assert resident_bytes() - before < 16 * MEGABYTE


def test_fresh_memory_is_writable_and_zero() -> None:
    for filler in ([], [(0, 9 * MEGABYTE)]):
        zeros = fresh(9 * MEGABYTE, filler)
        assert bytes(zeros) == bytes(9 * MEGABYTE)
        zeros[-1] = 7
        assert zeros[-1] == 7


def test_memory_is_locked_once_and_used_again(locks: FakeLocks) -> None:
    staging = Staging()
    seen = []
    for _ in range(4):
        memory = staging.take(MEGABYTE, [])
        seen.append(pagelock.address(memory))
        assert staging.lock(memory)
        del memory
    assert len(set(seen)) == 1
    assert locks.tried == 1


def test_memory_in_use_is_not_handed_out_while_any_view_of_it_is_alive(locks: FakeLocks) -> None:
    staging = Staging()
    memory = staging.take(MEGABYTE, [])
    part = memory[PAGE : 2 * PAGE]
    address = pagelock.address(memory)
    del memory
    other = staging.take(MEGABYTE, [])
    assert pagelock.address(other) != address
    part[:] = b"x" * PAGE
    assert not any(other)
    del part
    assert pagelock.address(staging.take(MEGABYTE, [])) == address


def test_what_cannot_be_locked_is_used_all_the_same_and_not_tried_again(locks: FakeLocks) -> None:
    locks.works = False
    staging = Staging()
    for _ in range(3):
        memory = staging.take(MEGABYTE, [])
        assert not staging.lock(memory)
        del memory
    assert locks.tried == 1
    staging.close()


def test_no_more_than_the_spare_is_kept_and_what_goes_is_unlocked(locks: FakeLocks) -> None:
    staging = Staging(spare=2)
    taken = [staging.take(3 * MEGABYTE, []) for _ in range(5)]
    assert all(map(staging.lock, taken))
    taken.clear()
    assert staging.free_bytes == 2 * 4 * MEGABYTE  # in granules of two
    assert len(locks.held) == 2


def test_closing_lets_go_of_the_free_now_and_of_the_lent_when_it_comes_back(
    locks: FakeLocks,
) -> None:
    staging = Staging()
    kept, free = staging.take(MEGABYTE, []), staging.take(MEGABYTE, [])
    staging.lock(kept)
    staging.lock(free)
    del free
    staging.close()
    assert len(locks.held) == 1
    kept[0] = 1
    del kept
    assert not locks.held
    assert not staging.free_bytes


def test_memory_serves_what_is_a_little_smaller_and_not_what_is_much_smaller_or_larger(
    locks: FakeLocks,
) -> None:
    staging = Staging()
    memory = staging.take(16 * MEGABYTE, [])
    address = pagelock.address(memory)
    del memory
    assert pagelock.address(staging.take(10 * MEGABYTE, [])) == address
    assert pagelock.address(staging.take(7 * MEGABYTE, [])) != address
    assert pagelock.address(staging.take(17 * MEGABYTE, [])) != address


ranges = st.lists(st.integers(0, 4 * PAGE), max_size=8, unique=True).map(
    lambda ends: list(zip(sorted(ends)[::2], sorted(ends)[1::2], strict=False))
)


@given(st.lists(ranges, min_size=1, max_size=6))
def test_filler_is_zero_whatever_was_written_before(layouts: list[list[tuple[int, int]]]) -> None:
    staging = Staging()
    for filler in layouts:
        memory = staging.take(4 * PAGE, filler)
        wanted = np.ones(4 * PAGE, bool)
        for start, end in filler:
            assert not any(memory[start:end])
            wanted[start:end] = False
        np.asarray(memory)[: 4 * PAGE][wanted] = 0xFF  # what a taker may write, and does
        del memory


def test_filler_is_what_neither_a_literal_nor_a_copy_gives() -> None:
    step = Restore()
    step.literal(b"abc")
    step.copy(100, 5)
    step.n_bytes += 4
    step.literal(b"d")
    step.n_bytes += 2
    assert step.filler() == [(8, 12), (13, 15)]
    assert Restore().filler() == []


# -- with a model ----------------------------------------------------------------------------------


@pytest.fixture(params=[128, 0], ids=["window", "plain"])
def engine(
    request: pytest.FixtureRequest, tiny_model: Callable[..., Path], locks: FakeLocks
) -> Iterator[Engine]:
    """An engine that stages as one on a GPU does."""
    with Engine(
        str(tiny_model(window=request.param)), Settings(n_ubatch=128, n_threads=1)
    ) as engine:
        engine.staging = Staging()
        yield engine
    gc.collect()
    # everything was unlocked before the model went, or when its last user did
    assert not locks.held


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with Library(tmp_path / "library") as library:
        yield library


def ids(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(261, 350, n).tolist()


def states(engine: Engine, library: Library, name: str) -> list[bytes]:
    """What is handed to llama.cpp, read into memory of its own."""
    with library.open(name) as block:
        context = engine.context(engine.settings, len(block.header.tokens) + 16)
        return [bytes(buffer) for buffer in graft.prepare(context, block, verify=True).buffers]


@pytest.mark.native
def test_staged_states_are_the_bytes_of_fresh_ones_in_any_order(
    engine: Engine, library: Library
) -> None:
    """Layouts of different length share memory: what the one wrote is filler of the other."""
    lengths = (300, 290, 700, 310, 300, 40, 700, 1000)
    for n in set(lengths):
        save_tokens(engine, library, ids(n, n), f"n{n}", align="whole")
    expected = {n: states(engine, library, f"n{n}") for n in set(lengths)}
    for n in lengths * 2:
        with library.open(f"n{n}") as block:
            context = engine.context(engine.settings, n + 16)
            prepared = engine.prepare(context, block, verify=False)
            assert [bytes(buffer) for buffer in prepared.buffers] == expected[n]


@pytest.mark.native
def test_a_graft_is_put_back_from_its_own_memory_after_others_were_staged(
    engine: Engine, library: Library
) -> None:
    query = [5, 6, 7]
    for n in (300, 310, 320):
        save_tokens(engine, library, ids(n, n), f"n{n}", align="whole")
    with engine.new_context(engine.settings, 400) as context:
        context.decode(ids(300, 300), 0, logits=False)
        expected = [certificate.digest(v) for v in llama.greedy(context, query, 300, 5)]
    first = engine.graft(library.open("n300"))
    for name in ("n310", "n320", "n310", "n320"):
        engine.graft(library.open(name)).prefill([9])
    first.put_back()
    found = [certificate.digest(v) for v in llama.greedy(first.place.context, query, 300, 5)]
    assert found == expected


@pytest.mark.native
def test_the_memory_tier_holds_locked_memory_and_gives_it_back_when_it_is_evicted(
    engine: Engine, library: Library, locks: FakeLocks
) -> None:
    assert engine.staging is not None
    for seed in range(4):
        save_tokens(engine, library, ids(300, seed), f"b{seed}", align="whole")
    with engine.new_context(engine.settings, 400) as context:
        context.decode(ids(300, 0), 0, logits=False)
        expected = [certificate.digest(v) for v in llama.greedy(context, [5, 6], 300, 5)]
    with library.open("b0") as block:
        size = engine.prepare(
            engine.context(engine.settings, 400), block, verify=False
        ).memory.nbytes
    with Tiers(engine, library, memory_bytes=2 * size) as tiers:
        for turn in range(12):
            hit = tiers.graft(f"b{turn % 4}")
            if not turn % 4:
                got = [
                    certificate.digest(v)
                    for v in llama.greedy(hit.grafted.place.context, [5, 6], 300, 5)
                ]
                assert got == expected
        assert tiers.evicted["memory"] == 10
        assert len(locks.held) >= 2
        assert (
            locks.tried <= 2 + 1 + engine.staging.spare
        )  # kept, being read into, and spare: used again, not locked anew


@pytest.mark.native
def test_a_graft_from_memory_opens_no_file(
    engine: Engine, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_id = save_tokens(engine, library, ids(300, 1), "block", align="whole").info.id
    with Tiers(engine, library, memory_bytes=1 << 30) as tiers:
        tiers.graft(block_id)
        monkeypatch.setattr(library, "open", None)
        assert tiers.graft(block_id).tier == "memory"
