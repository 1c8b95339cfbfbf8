"""llama.cpp itself on a family's file, below our engine: logits of fresh runs and of its own
per-sequence restore.

Our engine refuses families whose memory it does not know; what llama.cpp does with them is the
measurement that such a refusal, or its end, rests on. So this calls llama_cpp as it is.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from taliesin.engine import llama

N_UBATCH = 128
STEPS = 8
Logits = npt.NDArray[np.float32]


def prompt(n: int, n_vocab: int, seed: int = 1) -> list[int]:
    """`n` seeded token ids."""
    return [int(t) for t in np.random.default_rng([seed, n]).integers(10, n_vocab, n)]


class Loaded:
    """A model file, loaded."""

    def __init__(self, path: Path) -> None:
        self.lib = lib = llama._llama()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.pointer = lib.llama_model_load_from_file(os.fsencode(path), params)
        assert self.pointer, llama.last_log()
        self.n_vocab: int = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.pointer))

    def close(self) -> None:
        self.lib.llama_model_free(self.pointer)

    @contextmanager
    def context(self, n_ctx: int = 1280) -> Iterator[Running]:
        lib = self.lib
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, N_UBATCH, N_UBATCH
        params.n_threads = params.n_threads_batch = 2
        params.n_seq_max = 1
        params.flash_attn_type = 1
        params.swa_full = False
        pointer = lib.llama_init_from_model(self.pointer, params)
        assert pointer, llama.last_log()
        try:
            yield Running(lib, pointer, self.n_vocab)
        finally:
            lib.llama_free(pointer)


class Running:
    """A context: tokens in, logits and states out."""

    def __init__(self, lib: Any, pointer: Any, n_vocab: int) -> None:
        self.lib, self.pointer, self.n_vocab = lib, pointer, n_vocab

    @property
    def memory(self) -> Any:
        return self.lib.llama_get_memory(self.pointer)

    def decode(self, tokens: list[int], position: int) -> Logits:
        """Logits after the last of `tokens`, in pieces of `N_UBATCH`."""
        lib = self.lib
        for start in range(0, len(tokens), N_UBATCH):
            part = tokens[start : start + N_UBATCH]
            batch = lib.llama_batch_init(len(part), 0, 1)
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i] = token
                batch.pos[i] = position + start + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = start + i == len(tokens) - 1
            code = lib.llama_decode(self.pointer, batch)
            lib.llama_batch_free(batch)
            assert code == 0, (code, llama.last_log())
        row = lib.llama_get_logits_ith(self.pointer, -1)
        return np.ctypeslib.as_array(row, (self.n_vocab,)).copy()

    def greedy(
        self, query: list[int], position: int, steps: int = STEPS
    ) -> tuple[list[int], list[bytes]]:
        """The tokens chosen, and every logits vector: one after the query, one after each step."""
        logits = self.decode(query, position)
        position += len(query)
        tokens, vectors = [], [logits.tobytes()]
        for _ in range(steps):
            tokens.append(int(logits.argmax()))
            logits = self.decode(tokens[-1:], position)
            vectors.append(logits.tobytes())
            position += 1
        return tokens, vectors

    def state(self) -> bytes:
        size = self.lib.llama_state_seq_get_size(self.pointer, 0)
        buffer = (ctypes.c_uint8 * size)()
        got = self.lib.llama_state_seq_get_data(self.pointer, buffer, size, 0)
        return bytes(buffer)[:got]

    def restore(self, state: bytes) -> bool:
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        return bool(self.lib.llama_state_seq_set_data(self.pointer, buffer, len(state), 0))


def restored(model: Loaded, length: int, query_length: int, steps: int = STEPS) -> tuple[int, int]:
    """(equal, all) logits vectors of llama.cpp's own restore against a fresh run, in a new context
    in which something else was computed before.
    """
    tokens = prompt(length, model.n_vocab)
    query = prompt(query_length, model.n_vocab, seed=2)
    with model.context() as fresh:
        fresh.decode(tokens, 0)
        state = fresh.state()
        _, expected = fresh.greedy(query, length, steps)
    with model.context() as grafted:
        grafted.decode(prompt(333, model.n_vocab, seed=3), 0)
        grafted.lib.llama_memory_clear(grafted.memory, True)
        if not grafted.restore(state):
            return 0, len(expected)
        _, got = grafted.greedy(query, length, steps)
    return sum(a == b for a, b in zip(expected, got, strict=True)), len(expected)


def remembers(model: Loaded, length: int = 300) -> bool:
    """Whether the first of `length` tokens changes the logits after the last."""
    vectors = []
    for first in (11, 12):
        with model.context() as context:
            vectors.append(context.decode([first, *prompt(length - 1, model.n_vocab)], 0))
    return not np.array_equal(*vectors)
