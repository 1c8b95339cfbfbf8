"""Families that keep a state which every token rewrites: in all layers, or beside attention."""

from __future__ import annotations

from .shape import EMBED, HEAD, HEADS, HEADS_KV, Family, Layer, Shape
from .window import WINDOW

_CONV = 4  # tokens that a convolution sees


def _delta_net(layer: Layer, *, state: int, groups: int, value_heads: int) -> None:
    """A gated delta net as Qwen 3.5 has it."""
    keys, values = state * groups, state * value_heads
    layer.matrix("attn_qkv", layer.embed, 2 * keys + values)
    layer.matrix("attn_gate", layer.embed, values)
    layer.matrix("ssm_conv1d", _CONV, 2 * keys + values)
    layer.bias("ssm_dt", value_heads)
    layer.plain("ssm_a", value_heads)
    layer.matrix("ssm_beta", layer.embed, value_heads)
    layer.matrix("ssm_alpha", layer.embed, value_heads)
    layer.norms("ssm_norm", size=state)
    layer.matrix("ssm_out", values, layer.embed)


def _qwen35() -> Shape:
    state, groups, value_heads = 64, 2, 4
    shape = Shape(
        8,
        rope__dimension_count=HEAD // 2,
        rope__dimension_sections=[6, 5, 5, 0],
        full_attention_interval=4,
        ssm__conv_kernel=_CONV,
        ssm__inner_size=state * value_heads,
        ssm__state_size=state,
        ssm__time_step_rank=value_heads,
        ssm__group_count=groups,
    )
    for n, layer in enumerate(shape.layers()):
        layer.norms("attn_norm", "post_attention_norm")
        if n % 4 == 3:
            layer.attention()
            layer.matrix("attn_q", EMBED, HEADS * HEAD * 2)  # with its gate
            layer.norms("attn_q_norm", "attn_k_norm", size=HEAD)
        else:
            _delta_net(layer, state=state, groups=groups, value_heads=value_heads)
        layer.feed_forward()
    shape.output()
    return shape


_LFM2_HEADS = EMBED // HEAD  # its heads together are as wide as the embedding


def _lfm2() -> Shape:
    kernel, heads_kv = 3, [0, 0, 1, 0, 0, 1, 0, 1]
    shape = Shape(
        len(heads_kv),
        attention__head_count=_LFM2_HEADS,
        attention__head_count_kv=heads_kv,
        rope__dimension_count=HEAD,
        shortconv__l_cache=kernel,
    )
    for n, layer in enumerate(shape.layers()):
        layer.norms("attn_norm", "ffn_norm")
        if heads_kv[n]:
            layer.norms("attn_q_norm", "attn_k_norm", size=HEAD)
            layer.attention(heads=_LFM2_HEADS, heads_kv=heads_kv[n])
        else:
            layer.matrix("shortconv.conv", kernel, EMBED)
            layer.matrix("shortconv.in_proj", EMBED, 3 * EMBED)
            layer.matrix("shortconv.out_proj", EMBED, EMBED)
        layer.feed_forward()
    shape.output(norm="token_embd_norm", tied=True)
    return shape


def _lfm2_window() -> Shape:
    shape = _lfm2()
    shape.set(attention__sliding_window=WINDOW)
    return shape


def _mamba2(layer: Layer, heads: int, *, state: int, groups: int = 1) -> None:
    inner = 2 * layer.embed
    conv = inner + 2 * groups * state
    layer.matrix("ssm_in", layer.embed, inner + conv + heads)
    layer.matrix("ssm_conv1d", _CONV, conv)
    layer.bias("ssm_conv1d", conv)
    layer.bias("ssm_dt", heads)
    layer.plain("ssm_a", 1, heads)
    layer.plain("ssm_d", 1, heads)
    layer.matrix("ssm_norm", inner // groups, groups)
    layer.matrix("ssm_out", inner, layer.embed)


def _set_mamba2(shape: Shape, heads: int, *, state: int, groups: int = 1) -> None:
    shape.set(
        ssm__conv_kernel=_CONV,
        ssm__inner_size=2 * shape.embed,
        ssm__state_size=state,
        ssm__time_step_rank=heads,
        ssm__group_count=groups,
    )


def _granite() -> Shape:
    heads_kv = [0, 0, 0, HEADS_KV, 0, 0, 0, HEADS_KV]
    shape = Shape(len(heads_kv), attention__head_count_kv=heads_kv, rope__dimension_count=HEAD)
    _set_mamba2(shape, 8, state=64)
    for n, layer in enumerate(shape.layers()):
        layer.norms("attn_norm", "ffn_norm")
        if heads_kv[n]:
            layer.attention(heads_kv=heads_kv[n])
        else:
            _mamba2(layer, 8, state=64)
        layer.feed_forward()
    shape.output()
    return shape


def _mamba2_alone() -> Shape:
    shape = Shape(6, feed_forward_length=0, attention__head_count=0, attention__head_count_kv=0)
    _set_mamba2(shape, 8, state=64)
    for layer in shape.layers():
        layer.norms("attn_norm")
        _mamba2(layer, 8, state=64)
    shape.output()
    return shape


FAMILIES = (
    Family("qwen35", "qwen35", "memory_hybrid", _qwen35, note="gated delta net, M-RoPE"),
    Family("lfm2", "lfm2", "memory_hybrid", _lfm2, note="short convolutions"),
    Family(
        "lfm2-window",
        "lfm2",
        "memory_hybrid_iswa",
        _lfm2_window,
        restores=False,
        note="its attention layers have a window",
    ),
    Family("granitehybrid", "granitehybrid", "memory_hybrid", _granite, note="Mamba-2"),
    Family("mamba2", "mamba2", "memory_recurrent", _mamba2_alone),
)
