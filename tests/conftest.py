"""Models that several tests share. A missing real model skips its tests; `make test` gets the two
it needs first.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import hypothesis
import numpy as np
import pytest

from benchmarks import memories
from benchmarks.memories import tokenizer
from taliesin.errors import ModelError
from taliesin.models import resolve as models

# No timed assertion: machines are shared and slow at times. The same examples every time: a red run
# can be repeated.
hypothesis.settings.register_profile("untimed", deadline=None, derandomize=True)
hypothesis.settings.load_profile("untimed")


def _resolved(name: str) -> Path:
    try:
        return models.resolve(name)
    except ModelError:
        pytest.skip(f"the model {name} is not here: taliesin model pull {name}")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M: real weights, no window layers, a chat template."""
    return _resolved("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma-3-270M: real weights, a window of 512 in five layers of six."""
    return _resolved("gemma3-270m")


@pytest.fixture(scope="session")
def synthesise() -> ModuleType:
    """`benchmarks/synthesise.py`."""
    path = Path(__file__).parent.parent / "benchmarks" / "synthesise.py"
    spec = importlib.util.spec_from_file_location("synthesise", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["synthesise"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def gemma4(tmp_path_factory: pytest.TempPathFactory, synthesise: ModuleType) -> Path:
    """Gemma-4's shape with random weights: head sizes that differ, global layers without V, shared
    KV, a window of 128.
    """
    path = tmp_path_factory.mktemp("gemma4") / "gemma4.gguf"
    written: Path = synthesise.write(path, synthesise.SHAPES["gemma4-tiny-shared"])
    return written


# -- the tiny model --------------------------------------------------------------------------------
# Half a megabyte: Gemma-3-shaped (five window layers of six, or none), seeded random weights, byte
# tokenizer. Bit equality does not
# depend on what weights say, so tests of grafting run on this one in milliseconds.

WINDOW = 128
EMBEDDING, FEED_FORWARD, HEADS, HEAD = 64, 128, 2, 32


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_model(seed=1, window=WINDOW)`: the path of such a model, made once for each pair."""
    folder = tmp_path_factory.mktemp("models")

    def made(seed: int = 1, window: int = WINDOW) -> Path:
        path = folder / f"tiny-{window}-{seed}.gguf"
        return path if path.exists() else write_model(path, seed, window)

    return made


@pytest.fixture(scope="session")
def memory_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`memory_model("lfm2")`: a file of a family of `benchmarks.memories` with a tokenizer."""
    folder = tmp_path_factory.mktemp("memories")

    def made(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists():
            memories.write(memories.FAMILIES[name], path, tokenizer=True)
        return path

    return made


def write_model(path: Path, seed: int, window: int, layers: int = 6) -> Path:
    """Write the model to `path`; `window` 0 gives plain attention in every layer (a llama-shaped
    file).
    """
    import gguf

    architecture = "gemma3" if window else "llama"
    out = gguf.GGUFWriter(path, architecture)
    out.add_context_length(8192)
    out.add_embedding_length(EMBEDDING)
    out.add_block_count(layers)
    out.add_feed_forward_length(FEED_FORWARD)
    out.add_head_count(HEADS)
    out.add_head_count_kv(1)
    out.add_key_length(HEAD)
    out.add_value_length(HEAD)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_rope_freq_base(1e6)
    if window:
        out.add_sliding_window(window)
    else:
        out.add_rope_dimension_count(HEAD)
    tokenizer.add(out)
    rng = np.random.default_rng(seed)

    def matrix(name: str, rows: int, columns: int) -> None:
        out.add_tensor(f"{name}.weight", rng.normal(0, 0.15, (rows, columns)).astype(np.float16))

    def ones(name: str, n: int) -> None:
        out.add_tensor(f"{name}.weight", np.ones(n, np.float32))

    embedding = rng.normal(0, 0.15, (tokenizer.N_VOCAB, EMBEDDING)).astype(np.float16)
    tokenizer.quieten(embedding)  # tied to the output
    out.add_tensor("token_embd.weight", embedding)
    ones("output_norm", EMBEDDING)
    for layer in range(layers):
        block = f"blk.{layer}."
        norms = [
            "attn_norm",
            "ffn_norm",
            *(["post_attention_norm", "post_ffw_norm"] if window else []),
        ]
        for name in norms:
            ones(block + name, EMBEDDING)
        if window:
            ones(block + "attn_q_norm", HEAD)
            ones(block + "attn_k_norm", HEAD)
        matrix(block + "attn_q", HEADS * HEAD, EMBEDDING)
        matrix(block + "attn_k", HEAD, EMBEDDING)
        matrix(block + "attn_v", HEAD, EMBEDDING)
        matrix(block + "attn_output", EMBEDDING, HEADS * HEAD)
        matrix(block + "ffn_gate", FEED_FORWARD, EMBEDDING)
        matrix(block + "ffn_up", FEED_FORWARD, EMBEDDING)
        matrix(block + "ffn_down", EMBEDDING, FEED_FORWARD)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path
