"""Write a GGUF file of a known model's shape with seeded random weights.

    python benchmarks/synthesise.py gemma3-12b out.gguf

Bit-identity and timing do not depend on what weights say, so these stand in for models whose
weights are not at hand, and for memory
layouts that no small model has. No tokenizer: blocks are made from token ids. Shapes:

* `gemma3-270m`, `gemma3-12b`: five window layers to one global, Q8_0 weights (0.3 GB and 12.5 GB);
* `gemma3-tiny`: the same pattern in 6 layers;
* `gemma4-tiny`, `gemma4-tiny-shared`: window and global layers with different head sizes and KV
  heads, global layers without V weights, and in the second the last layers reuse the KV of earlier
  ones.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Shape:
    """Sizes of a Gemma-like decoder. `global_*` differ from the window layers' on Gemma 4 only."""

    architecture: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    window: int
    n_vocab: int
    quantised: bool
    global_head_kv: int = 0
    global_head_dim: int = 0
    # the layers that stay must end with a global one: the others reuse the last of each kind
    n_shared: int = 0

    def is_global(self, layer: int) -> bool:
        return layer % 6 == 5


SHAPES = {
    "gemma3-270m": Shape("gemma3", 18, 640, 2048, 4, 1, 256, 512, 262_144, quantised=True),
    "gemma3-12b": Shape("gemma3", 48, 3840, 15_360, 16, 8, 256, 1024, 262_144, quantised=True),
    "gemma3-tiny": Shape("gemma3", 6, 256, 512, 4, 1, 64, 128, 4096, quantised=False),
    "gemma4-tiny": Shape(
        "gemma4", 12, 256, 512, 4, 2, 64, 128, 4096, False, global_head_kv=1, global_head_dim=128
    ),
    "gemma4-tiny-shared": Shape(
        "gemma4",
        12,
        256,
        512,
        4,
        2,
        64,
        128,
        4096,
        False,
        global_head_kv=1,
        global_head_dim=128,
        n_shared=6,
    ),
}

_POOL = 1 << 24  # random bytes drawn once and re-cut: drawing 12 GB would take minutes


class _Weights:
    """Adds seeded random tensors to a file; every tensor is cut from one pool at its own offset."""

    def __init__(self, out: Any, quantised: bool, seed: int) -> None:
        self.out, self.quantised = out, quantised
        self.rng = np.random.default_rng(seed)
        self.pool = self.rng.integers(-127, 128, _POOL, dtype=np.int8)

    def matrix(self, name: str, rows: int, columns: int, spread: float = 0.03) -> None:
        """A (rows, columns) matrix with standard deviation near `spread`."""
        import gguf

        if not self.quantised:
            values = self.rng.standard_normal((rows, columns)) * spread
            self.out.add_tensor(name, values.astype(np.float16))
            return
        n_blocks = rows * columns // 32
        blocks = np.empty((n_blocks, 34), np.uint8)  # Q8_0: a float16 scale and 32 int8
        blocks[:, :2] = np.frombuffer(np.float16(spread / 73.3).tobytes(), np.uint8)
        start = int(self.rng.integers(0, _POOL))
        filled = np.resize(np.roll(self.pool, -start), n_blocks * 32)
        blocks[:, 2:] = filled.view(np.uint8).reshape(n_blocks, 32)
        self.out.add_tensor(
            name, blocks.reshape(rows, columns // 32 * 34), raw_dtype=gguf.GGMLQuantizationType.Q8_0
        )

    def ones(self, name: str, n: int) -> None:
        self.out.add_tensor(name, np.ones(n, np.float32))


def write(path: Path, shape: Shape, seed: int = 1) -> Path:
    """Write the file; the same shape and seed give the same bytes."""
    import gguf

    out = gguf.GGUFWriter(path, shape.architecture)
    _write_metadata(out, shape)
    weights = _Weights(out, shape.quantised, seed)
    weights.matrix("token_embd.weight", shape.n_vocab, shape.n_embd)
    weights.ones("output_norm.weight", shape.n_embd)
    if shape.architecture == "gemma4":
        weights.ones("rope_freqs.weight", shape.global_head_dim // 2)
    for layer in range(shape.n_layer):
        _write_layer(weights, shape, layer)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def _write_metadata(out: Any, shape: Shape) -> None:
    name = shape.architecture
    out.add_context_length(131_072)
    out.add_embedding_length(shape.n_embd)
    out.add_block_count(shape.n_layer)
    out.add_feed_forward_length(shape.n_ff)
    out.add_head_count(shape.n_head)
    out.add_layer_norm_rms_eps(1e-6)
    out.add_sliding_window(shape.window)
    out.add_rope_freq_base(1e6)
    out.add_vocab_size(shape.n_vocab)
    out.add_tokenizer_model("none")
    if name == "gemma3":
        out.add_head_count_kv(shape.n_head_kv)
        out.add_key_length(shape.head_dim)
        out.add_value_length(shape.head_dim)
        return
    windowed = [not shape.is_global(layer) for layer in range(shape.n_layer)]
    out.add_head_count_kv([shape.n_head_kv if w else shape.global_head_kv for w in windowed])
    out.add_key_length(shape.global_head_dim)
    out.add_value_length(shape.global_head_dim)
    out.add_rope_dimension_count(shape.global_head_dim)
    out.add_uint32(f"{name}.attention.key_length_swa", shape.head_dim)
    out.add_uint32(f"{name}.attention.value_length_swa", shape.head_dim)
    out.add_uint32(f"{name}.rope.dimension_count_swa", shape.head_dim)
    out.add_array(f"{name}.attention.sliding_window_pattern", windowed)
    out.add_uint32(f"{name}.attention.shared_kv_layers", shape.n_shared)
    out.add_uint32(f"{name}.embedding_length_per_layer_input", 0)
    out.add_float32(f"{name}.rope.freq_base_swa", 1e4)
    out.add_float32(f"{name}.final_logit_softcapping", 30.0)


def _write_layer(weights: _Weights, shape: Shape, layer: int) -> None:
    prefix = f"blk.{layer}."
    differs = shape.architecture == "gemma4" and shape.is_global(layer)
    head_dim = shape.global_head_dim if differs else shape.head_dim
    n_head_kv = shape.global_head_kv if differs else shape.n_head_kv
    for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
        weights.ones(f"{prefix}{norm}.weight", shape.n_embd)
    for norm in ("attn_q_norm", "attn_k_norm"):
        weights.ones(f"{prefix}{norm}.weight", head_dim)
    matrices = {
        "attn_q": (shape.n_head * head_dim, shape.n_embd),
        "attn_k": (n_head_kv * head_dim, shape.n_embd),
        "attn_v": (n_head_kv * head_dim, shape.n_embd),
        "attn_output": (shape.n_embd, shape.n_head * head_dim),
        "ffn_gate": (shape.n_ff, shape.n_embd),
        "ffn_up": (shape.n_ff, shape.n_embd),
        "ffn_down": (shape.n_embd, shape.n_ff),
    }
    if differs:
        del matrices["attn_v"]  # global layers of Gemma 4 use K as V
    for name, (rows, columns) in matrices.items():
        weights.matrix(f"{prefix}{name}.weight", rows, columns)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(write(given.path, SHAPES[given.shape], given.seed), file=sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
