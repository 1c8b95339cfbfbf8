"""Every family's file is the same bytes for a seed, loads, decodes, and remembers its far past."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from benchmarks.memories import FAMILIES, write
from tests.benchmarks.memories import probe

GOLDEN = {
    "llama": "0f4e75f96cf2f9d5ab6cf76331379d57d78707c914076eb61f1f00b8d92d78e1",
    "gemma4-shared": "a597dff3bb2d128df2d2225e9fb5ca4a284a9b6cdab7cc437a19faf8aea003d2",
}


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_a_seed_gives_the_same_bytes_everywhere(name: str, tmp_path: Path) -> None:
    data = write(FAMILIES[name], tmp_path / "a.gguf").read_bytes()
    assert hashlib.sha256(data).hexdigest() == GOLDEN[name]


def test_another_seed_gives_other_bytes(tmp_path: Path) -> None:
    family = FAMILIES["llama"]
    one, two = (write(family, tmp_path / f"{seed}.gguf", seed).read_bytes() for seed in (1, 2))
    assert len(one) == len(two)
    assert one != two


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_file_is_small(name: str, tmp_path: Path) -> None:
    assert 5e5 < write(FAMILIES[name], tmp_path / "a.gguf").stat().st_size < 1e7


def _decodes(name: str, folder: Path) -> None:
    model = probe.Loaded(write(FAMILIES[name], folder / "a.gguf"))
    try:
        with model.context() as context:
            tokens, vectors = context.greedy(probe.prompt(300, model.n_vocab), 0, 16)
        assert all(np.isfinite(np.frombuffer(v, np.float32)).all() for v in vectors)
        assert len(set(tokens)) > 1, "one token again and again"
        assert probe.remembers(model)
    finally:
        model.close()


@pytest.mark.native
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_file_loads_decodes_and_remembers_its_first_token(name: str, tmp_path: Path) -> None:
    _decodes(name, tmp_path)
