"""Families whose layers attend to a window of the last tokens, or to a chunk: their rows live in a
ring beside the ordinary cache. Llama.cpp drops what lies outside the window from a saved state, so
its own restore sums in another order.
"""

from __future__ import annotations

from .shape import (
    EMBED,
    EXPERT_FEED,
    EXPERTS,
    EXPERTS_USED,
    HEAD,
    HEADS,
    HEADS_KV,
    Family,
    Layer,
    Shape,
    Value,
)

WINDOW = 128
_TWO_HEADS: dict[str, Value] = {"attention__head_count": 2, "attention__head_count_kv": 1}
"""For architectures whose heads together are as wide as the embedding."""


def _window(layers: int, period: int = 0) -> Shape:
    """`period`: every so many layers one is global; 0 leaves that to the architecture's habit."""
    shape = Shape(layers, attention__sliding_window=WINDOW)
    if period:
        shape.set(
            attention__sliding_window_pattern=[n % period != period - 1 for n in range(layers)]
        )
    return shape


def _post_norms(layer: Layer) -> None:
    layer.norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")


def _gemma3() -> Shape:
    shape = _window(6)
    for layer in shape.layers():
        _post_norms(layer)
        layer.norms("attn_q_norm", "attn_k_norm", size=HEAD)
        layer.attention()
        layer.feed_forward()
    shape.output()
    return shape


def _gemma2() -> Shape:
    shape = _window(4)
    shape.set(attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    for layer in shape.layers():
        _post_norms(layer)
        layer.attention()
        layer.feed_forward()
    shape.output(tied=True)
    return shape


def _cohere2() -> Shape:
    shape = _window(4)
    shape.set(logit_scale=1.0, attention__layer_norm_epsilon=1e-6, rope__dimension_count=HEAD)
    shape.set(**_TWO_HEADS)
    for layer in shape.layers():
        layer.norms("attn_norm")
        layer.attention(heads=2, heads_kv=1)
        layer.feed_forward()
    shape.output(tied=True)
    return shape


def _olmo2(period: int) -> Shape:
    shape = _window(4, period)
    shape.set(**_TWO_HEADS)
    for layer in shape.layers():
        layer.norms("post_attention_norm", "post_ffw_norm")
        layer.norms("attn_q_norm", size=2 * HEAD)
        layer.norms("attn_k_norm", size=HEAD)
        layer.attention(heads=2, heads_kv=1)
        layer.feed_forward()
    shape.output()
    return shape


def _olmo3() -> Shape:
    return _olmo2(period=4)


def _every_layer() -> Shape:
    shape = _olmo2(period=4)
    shape.set(attention__sliding_window_pattern=[True] * shape.n_layers)
    return shape


def _gpt_oss() -> Shape:
    shape = _window(4)
    shape.set(
        expert_count=EXPERTS,
        expert_used_count=EXPERTS_USED,
        expert_feed_forward_length=EXPERT_FEED,
    )
    for layer in shape.layers():
        layer.norms("attn_norm", "post_attention_norm")
        layer.attention()
        layer.matrix("attn_sinks", HEADS)
        layer.experts()
        for name, size in (
            ("attn_q", HEADS * HEAD),
            ("attn_k", HEADS_KV * HEAD),
            ("attn_v", HEADS_KV * HEAD),
            ("attn_output", EMBED),
            ("ffn_gate_inp", EXPERTS),
        ):
            layer.bias(name, size)
        layer.bias("ffn_gate_exps", EXPERT_FEED, EXPERTS)
        layer.bias("ffn_up_exps", EXPERT_FEED, EXPERTS)
        layer.bias("ffn_down_exps", EMBED, EXPERTS)
    shape.output()
    return shape


def _llama4() -> Shape:
    # the chunk is 8,192 tokens whatever the file says
    shape = Shape(
        4,
        expert_count=EXPERTS,
        expert_used_count=1,
        expert_feed_forward_length=EXPERT_FEED,
        interleave_moe_layer_step=2,
        rope__dimension_count=HEAD,
    )
    for n, layer in enumerate(shape.layers()):
        layer.norms("attn_norm", "ffn_norm")
        layer.attention()
        if n % 2:
            layer.experts(shared=EXPERT_FEED)
        else:
            layer.feed_forward()
    shape.output()
    return shape


def _gemma4(n_shared: int) -> Shape:
    """Global layers with one KV head of 128 and no V; the last `n_shared` layers reuse rows."""
    shape = _window(12, period=6)
    heads_kv = [1 if n % 6 == 5 else 2 for n in range(12)]
    shape.set(
        attention__head_count_kv=heads_kv,
        attention__key_length=2 * HEAD,
        attention__value_length=2 * HEAD,
        attention__key_length_swa=HEAD,
        attention__value_length_swa=HEAD,
        attention__shared_kv_layers=n_shared,
        rope__dimension_count=2 * HEAD,
        rope__dimension_count_swa=HEAD,
        rope__freq_base_swa=1e4,
        embedding_length_per_layer_input=0,
        final_logit_softcapping=30.0,
    )
    shape.top.norms("rope_freqs", size=HEAD)
    for n, layer in enumerate(shape.layers()):
        is_global = n % 6 == 5
        head = 2 * HEAD if is_global else HEAD
        _post_norms(layer)
        layer.norms("attn_q_norm", "attn_k_norm", size=head)
        layer.attention(heads_kv=heads_kv[n], head=head, value=not is_global)
        layer.feed_forward()
    shape.output()
    return shape


def _gemma4_full() -> Shape:
    return _gemma4(0)


def _gemma4_shared() -> Shape:
    return _gemma4(6)


_ALTUP, _LAUREL, _PER_LAYER = 4, 64, 256  # Gemma 3n's, which a file cannot change


def _gemma3n() -> Shape:
    layers, embed, vocab = 22, 64, 384  # rows are kept in the first 20, whatever the file says
    shape = Shape(layers, embed=embed, vocab=vocab, feed_forward_length=embed)
    shape.set(attention__sliding_window=WINDOW, **_TWO_HEADS)
    top = shape.top
    top.matrix("altup_proj", embed, embed, _ALTUP - 1)
    top.matrix("altup_unembd_proj", embed, embed, _ALTUP - 1)
    top.matrix("per_layer_token_embd", _PER_LAYER * layers, vocab)
    top.matrix("per_layer_model_proj", embed, _PER_LAYER * layers)
    top.norms("per_layer_proj_norm", size=_PER_LAYER)
    for layer in shape.layers():
        _post_norms(layer)
        layer.norms("attn_q_norm", "attn_k_norm", size=HEAD)
        layer.attention(heads=2, heads_kv=1)
        layer.feed_forward(embed)
        layer.matrix("inp_gate", embed, _PER_LAYER)
        layer.matrix("proj", _PER_LAYER, embed)
        layer.norms("post_norm", "altup_correct_scale", "altup_router_norm", "laurel_post_norm")
        layer.matrix("altup_correct_coef", _ALTUP, _ALTUP)
        layer.matrix("altup_predict_coef", _ALTUP, _ALTUP * _ALTUP)
        layer.matrix("altup_router", embed, _ALTUP)
        layer.matrix("laurel_l", embed, _LAUREL)
        layer.matrix("laurel_r", _LAUREL, embed)
    shape.output()
    return shape


FAMILIES = (
    Family("gemma3", "gemma3", "kv_cache_iswa", _gemma3, restores=False),
    Family("gemma2", "gemma2", "kv_cache_iswa", _gemma2, restores=False, note="soft caps"),
    Family("cohere2", "cohere2", "kv_cache_iswa", _cohere2, restores=False),
    Family("olmo3", "olmo2", "kv_cache_iswa", _olmo3, restores=False),
    Family(
        "every-layer",
        "olmo2",
        "kv_cache_iswa",
        _every_layer,
        restores=False,
        note="a window in every layer: the ordinary cache has none",
    ),
    Family("gpt-oss", "gpt-oss", "kv_cache_iswa", _gpt_oss, restores=False, note="sinks"),
    Family("llama4", "llama4", "kv_cache_iswa", _llama4, restores=True, note="chunks of 8,192"),
    Family("gemma4", "gemma4", "kv_cache_iswa", _gemma4_full, restores=False, note="K as V"),
    Family(
        "gemma4-shared",
        "gemma4",
        "kv_cache_iswa",
        _gemma4_shared,
        restores=False,
        note="the last layers reuse earlier rows",
    ),
    Family("gemma3n", "gemma3n", "kv_cache_iswa", _gemma3n, restores=False, note="shared rows"),
)
