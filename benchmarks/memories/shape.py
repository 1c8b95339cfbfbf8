"""What a family is: an architecture's metadata and the names and sizes of its tensors.

Sizes are in llama.cpp's order, the inner dimension first: `(n_in, n_out)` for a matrix that maps
n_in values to n_out. Nothing here knows what a weight's value is; that is `fill`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Value = bool | int | float | str | list[int] | list[bool] | list[float]

VOCAB = 1024
EMBED = 128
HEAD = 64  # a head size that CUDA's flash attention has
HEADS, HEADS_KV = 4, 2
FEED = 256
EXPERTS, EXPERTS_USED, EXPERT_FEED = 4, 2, 64


@dataclass(frozen=True)
class Layer:
    """One layer's names: `matrix`, `bias` and `plain` add `blk.N.NAME` to the file's tensors."""

    shapes: dict[str, tuple[int, ...]]
    prefix: str = ""
    embed: int = EMBED

    def matrix(self, name: str, *size: int) -> None:
        """`NAME.weight`."""
        self.shapes[f"{self.prefix}{name}.weight"] = size

    def norms(self, *names: str, size: int = 0) -> None:
        """`NAME.weight` of one dimension each, the embedding's unless `size` says otherwise."""
        for name in names:
            self.matrix(name, size or self.embed)

    def bias(self, name: str, *size: int) -> None:
        """`NAME.bias`."""
        self.shapes[f"{self.prefix}{name}.bias"] = size

    def plain(self, name: str, *size: int) -> None:
        """A tensor without a suffix."""
        self.shapes[self.prefix + name] = size

    def attention(
        self, *, heads: int = HEADS, heads_kv: int = HEADS_KV, head: int = HEAD, value: bool = True
    ) -> None:
        """Separate matrices for queries, keys, values (not with `value` False) and the output."""
        self.matrix("attn_q", self.embed, heads * head)
        self.matrix("attn_k", self.embed, heads_kv * head)
        if value:
            self.matrix("attn_v", self.embed, heads_kv * head)
        self.matrix("attn_output", heads * head, self.embed)

    def feed_forward(self, size: int = FEED, *, gate: bool = True) -> None:
        if gate:
            self.matrix("ffn_gate", self.embed, size)
        self.matrix("ffn_up", self.embed, size)
        self.matrix("ffn_down", size, self.embed)

    def experts(self, *, shared: int = 0, bias: bool = False) -> None:
        """A router and its experts; `shared` is the shared expert's size, `bias` adds the router's
        correction.
        """
        self.matrix("ffn_gate_inp", self.embed, EXPERTS)
        if bias:
            self.bias("exp_probs_b", EXPERTS)
        self.matrix("ffn_gate_exps", self.embed, EXPERT_FEED, EXPERTS)
        self.matrix("ffn_up_exps", self.embed, EXPERT_FEED, EXPERTS)
        self.matrix("ffn_down_exps", EXPERT_FEED, self.embed, EXPERTS)
        if shared:
            self.matrix("ffn_gate_shexp", self.embed, shared)
            self.matrix("ffn_up_shexp", self.embed, shared)
            self.matrix("ffn_down_shexp", shared, self.embed)


class Shape:
    """Metadata and tensors of one file, filled by a family's function.

    `metadata` keys lack the architecture, which `write` puts before them.
    """

    def __init__(
        self, layers: int, *, embed: int = EMBED, vocab: int = VOCAB, **metadata: Value
    ) -> None:
        self.n_layers, self.embed, self.vocab = layers, embed, vocab
        self.tensors: dict[str, tuple[int, ...]] = {}
        self.metadata: dict[str, Value] = {
            "vocab_size": vocab,
            "context_length": 131_072,
            "embedding_length": embed,
            "block_count": layers,
            "feed_forward_length": FEED,
            "attention.head_count": HEADS,
            "attention.head_count_kv": HEADS_KV,
            "attention.key_length": HEAD,
            "attention.value_length": HEAD,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e6,
        }
        self.top = Layer(self.tensors, embed=embed)
        self.top.matrix("token_embd", embed, vocab)
        self.set(**metadata)

    def set(self, **metadata: Value) -> None:
        """Add metadata; `__` in a name stands for a dot."""
        self.metadata |= {name.replace("__", "."): value for name, value in metadata.items()}

    def output(self, *, norm: str = "output_norm", tied: bool = False) -> None:
        """The last norm, and the matrix to logits unless it is the embedding."""
        self.top.norms(norm)
        if not tied:
            self.top.matrix("output", self.embed, self.vocab)

    def layers(self) -> list[Layer]:
        return [Layer(self.tensors, f"blk.{n}.", self.embed) for n in range(self.n_layers)]


@dataclass(frozen=True)
class Family:
    """One kind of memory.

    `memory` is llama.cpp's class as its source names it, `restores` whether llama.cpp's own
    per-sequence restore is measured to give a fresh run's bits at every length: None where the
    family cannot be grafted at all.
    """

    name: str
    architecture: str
    memory: str
    shape: Callable[[], Shape]
    restores: bool | None = True
    note: str = ""
