"""What the boundary refuses, and that it says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from taliesin.engine import llama
from taliesin.errors import ContextFull, DecodeError, ModelError, UnsupportedModel, UsageError

pytestmark = pytest.mark.native

N_EMBD, N_INNER, N_STATE, N_RANK, N_CONV, N_VOCAB = 64, 128, 16, 4, 4, 64


def write_mamba(path: Path) -> Path:
    """A recurrent model of one layer with random weights."""
    import gguf

    out = gguf.GGUFWriter(path, "mamba")
    out.add_context_length(512)
    out.add_embedding_length(N_EMBD)
    out.add_feed_forward_length(0)
    out.add_head_count(0)
    out.add_block_count(1)
    out.add_ssm_conv_kernel(N_CONV)
    out.add_ssm_inner_size(N_INNER)
    out.add_ssm_state_size(N_STATE)
    out.add_ssm_time_step_rank(N_RANK)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(N_VOCAB)
    out.add_tokenizer_model("none")
    shapes = {
        "token_embd.weight": (N_VOCAB, N_EMBD),
        "output_norm.weight": (N_EMBD,),
        "blk.0.attn_norm.weight": (N_EMBD,),
        "blk.0.ssm_in.weight": (2 * N_INNER, N_EMBD),
        "blk.0.ssm_conv1d.weight": (N_INNER, N_CONV),
        "blk.0.ssm_conv1d.bias": (N_INNER,),
        "blk.0.ssm_x.weight": (N_RANK + 2 * N_STATE, N_INNER),
        "blk.0.ssm_dt.weight": (N_INNER, N_RANK),
        "blk.0.ssm_dt.bias": (N_INNER,),
        "blk.0.ssm_a": (N_INNER, N_STATE),
        "blk.0.ssm_d": (N_INNER,),
        "blk.0.ssm_out.weight": (N_EMBD, N_INNER),
    }
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        out.add_tensor(name, rng.normal(0, 0.1, shape).astype(np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def test_a_recurrent_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="recurrent layers"):
        llama.Model(write_mamba(tmp_path / "mamba.gguf"))


def test_a_multimodal_projector_is_no_model_and_the_error_says_so(tmp_path: Path) -> None:
    import gguf

    path = tmp_path / "mmproj.gguf"
    out = gguf.GGUFWriter(path, "clip")
    out.add_bool("clip.has_vision_encoder", True)
    out.add_tensor("v.position_embd.weight", np.zeros(4, np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    with pytest.raises(ModelError, match="CLIP cannot be used as main model"):
        llama.Model(path)


def test_a_damaged_model_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(ModelError, match="could not load"):
        llama.Model(path)


@pytest.fixture
def context(tiny_model: Callable[..., Path]) -> llama.Context:
    return llama.Context(llama.Model(tiny_model()), llama.Settings(n_ctx=256))


def test_a_full_context_is_refused_before_llama_cpp_sees_it(context: llama.Context) -> None:
    with pytest.raises(ContextFull, match="full"):
        context.decode([5], context.settings.n_ctx)


@pytest.mark.parametrize("tokens", [[], [-1], [1 << 20]], ids=["none", "negative", "too large"])
def test_token_ids_out_of_range_are_refused(tokens: list[int], context: llama.Context) -> None:
    with pytest.raises(DecodeError):
        context.decode(tokens, 0)


def test_a_refused_state_leaves_an_empty_context_that_still_works(context: llama.Context) -> None:
    before = context.decode([5, 6, 7], 0)
    context.clear()
    with pytest.raises(DecodeError, match="refused the state"):
        context.restore(memoryview(bytearray(64)))
    assert context.position_range() == (-1, -1)
    after = context.decode([5, 6, 7], 0)
    assert before is not None
    assert after is not None
    assert before.tobytes() == after.tobytes()


@pytest.mark.parametrize(
    "settings",
    [{"n_ubatch": 0}, {"n_threads": 0}, {"type_k": "q9"}, {"type_v": "q8_0", "flash_attn": False}],
)
def test_settings_out_of_range_are_refused(
    settings: dict[str, object], tiny_model: Callable[..., Path]
) -> None:
    with pytest.raises(UsageError):
        llama.Context(llama.Model(tiny_model()), llama.Settings(**settings))  # type: ignore[arg-type]


def test_a_grammar_constrains_what_is_sampled(tiny_model: Callable[..., Path]) -> None:
    from taliesin.engine.embedded import Engine

    with Engine(str(tiny_model())) as engine:
        context = engine.context(engine.settings, 200)
        context.decode(engine.model.tokenize("How many? ", special=False), 0)
        steps = list(
            engine.continue_from(
                context, 10, 8, llama.Sampling(grammar="root ::= [0-9] [0-9] [0-9]")
            )
        )
    text = "".join(step.text for step in steps)
    assert text.isdigit()
    assert len(text) == 3


def test_a_broken_grammar_is_refused(tiny_model: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="grammar"):
        llama.Sampler(llama.Model(tiny_model()), llama.Sampling(grammar="root ::= ("))


def sampled(model: Path, n: int = 24, **sampling: object) -> list[int]:
    from taliesin.engine.embedded import Engine

    with Engine(str(model)) as engine:
        context = engine.context(engine.settings, 200)
        context.decode(engine.model.tokenize("abcabc", special=False), 0)
        chosen = llama.Sampling(**sampling)  # type: ignore[arg-type]
        return [step.token for step in engine.continue_from(context, 6, n, chosen)]


def test_penalties_and_biases_change_what_is_sampled(tiny_model: Callable[..., Path]) -> None:
    plain = sampled(tiny_model())
    assert sampled(tiny_model(), repeat_penalty=1.0) == plain
    assert len(set(plain)) < len(plain)
    penalised = sampled(tiny_model(), presence_penalty=1000.0)
    assert len(set(penalised)) == len(penalised)
    assert plain[0] not in sampled(tiny_model(), logit_bias=((plain[0], -float("inf")),))
    assert set(sampled(tiny_model(), logit_bias=((300, 1000.0),))) == {300}


def test_an_interrupt_empties_the_context_and_changes_nothing_afterwards(
    tiny_model: Callable[..., Path],
) -> None:
    model = llama.Model(tiny_model())
    with llama.Context(model, llama.Settings(n_ctx=2048, n_ubatch=64, n_threads=1)) as context:
        ids = np.random.default_rng(1).integers(261, 350, 500)
        before = context.decode(ids, 0)
        context.clear()
        interrupt = llama.Interrupt()
        context.obey(interrupt)
        watched = context.decode(ids, 0)
        interrupt.set()
        with pytest.raises(llama.Interrupted):
            context.decode(ids, 500)
        assert context.position_range() == (-1, -1)
        interrupt.clear()
        after = context.decode(ids, 0)
    model.close()
    assert before is not None
    assert watched is not None
    assert after is not None
    assert before.tobytes() == watched.tobytes() == after.tobytes()
