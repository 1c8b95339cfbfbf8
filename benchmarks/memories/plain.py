"""Families that keep every row of K and V: no window, no state that is rewritten."""

from __future__ import annotations

from .shape import EMBED, EXPERT_FEED, EXPERTS, EXPERTS_USED, HEAD, HEADS, HEADS_KV, Family, Shape


def _llama() -> Shape:
    shape = Shape(4, rope__dimension_count=HEAD)
    for layer in shape.layers():
        layer.norms("attn_norm", "ffn_norm")
        layer.attention()
        layer.feed_forward()
    shape.output()
    return shape


def _qwen3moe() -> Shape:
    shape = Shape(
        4,
        expert_count=EXPERTS,
        expert_used_count=EXPERTS_USED,
        expert_feed_forward_length=EXPERT_FEED,
    )
    for layer in shape.layers():
        layer.norms("attn_norm", "ffn_norm")
        layer.norms("attn_q_norm", "attn_k_norm", size=HEAD)
        layer.attention()
        layer.experts()
    shape.output()
    return shape


def _qwen2vl() -> Shape:
    shape = Shape(4)
    # this architecture's heads share the embedding: no key length of their own
    shape.set(attention__key_length=EMBED // HEADS, attention__value_length=EMBED // HEADS)
    shape.set(rope__dimension_sections=[4, 6, 6, 0])
    for layer in shape.layers():
        layer.norms("attn_norm", "ffn_norm")
        layer.attention(head=EMBED // HEADS)
        for name, heads in (("attn_q", HEADS), ("attn_k", HEADS_KV), ("attn_v", HEADS_KV)):
            layer.bias(name, heads * EMBED // HEADS)
        layer.feed_forward()
    shape.output()
    return shape


def _qwen3vl() -> Shape:
    shape = Shape(4, rope__dimension_sections=[12, 10, 10, 0])
    for layer in shape.layers():
        layer.norms("attn_norm", "ffn_norm")
        layer.norms("attn_q_norm", "attn_k_norm", size=HEAD)
        layer.attention()
        layer.feed_forward()
    shape.output()
    return shape


FAMILIES = (
    Family("llama", "llama", "kv_cache", _llama),
    Family("qwen3moe", "qwen3moe", "kv_cache", _qwen3moe, note="mixture of experts"),
    Family("qwen2vl", "qwen2vl", "kv_cache", _qwen2vl, note="M-RoPE: four positions a token"),
    Family("qwen3vl", "qwen3vl", "kv_cache", _qwen3vl, note="M-RoPE, interleaved"),
)
