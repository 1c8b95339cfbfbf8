"""A family's file with the byte tokenizer speaks: any text goes in and comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from benchmarks.memories import FAMILIES, VOCAB, tokenizer
from taliesin.engine import llama


@pytest.mark.native
@pytest.mark.parametrize("name", ["llama", "gemma3n"])
def test_any_text_comes_back(name: str, memory_model: Callable[[str], Path]) -> None:
    with llama.Model(memory_model(name), vocab_only=True) as model:
        assert model.n_vocab == FAMILIES[name].shape().vocab
        for text in ("the quick brown fox", "Größe: 5 €\n\ttab", "<eos> is text"):
            assert model.text(model.tokenize(text, special=False)) == text
        assert model.tokenize("<eos>", special=True) == [model.eos]


@pytest.mark.native
def test_every_token_can_be_printed(memory_model: Callable[[str], Path]) -> None:
    with llama.Model(memory_model("llama"), vocab_only=True) as model:
        letters = range(tokenizer.BYTES.stop, VOCAB)
        assert all(model.piece(token).decode().isprintable() for token in letters)
        assert len({model.piece(token) for token in letters}) == len(letters)


@pytest.mark.parametrize("n_vocab", [tokenizer.N_VOCAB - 1, 5000])
def test_a_vocabulary_that_it_cannot_fill_is_refused(n_vocab: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=str(n_vocab)):
        tokenizer.add(gguf.GGUFWriter(tmp_path / "a.gguf", "llama"), n_vocab)
