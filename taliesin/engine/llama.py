"""The only module that imports llama_cpp: models, contexts, tokens, states and samplers of the
pinned build.

Everything above sees numpy arrays, bytes and our own exceptions. What each class promises is in its
docstring; nothing here knows blocks, recipes or files other than a model's.
"""

from __future__ import annotations

import codecs
import ctypes
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from taliesin.errors import (
    ContextFull,
    DecodeError,
    EngineUnavailable,
    ModelError,
    UnsupportedModel,
    UsageError,
)
from taliesin.host.machine import LLAMA_CPP_PYTHON
from taliesin.state import placement

SUPPORTED_VERSION = LLAMA_CPP_PYTHON
"""The llama-cpp-python whose state layout `seqstate` and whose cache `placement` describe."""

KV_TYPES = {"f16": 1, "f32": 0, "bf16": 30, "q8_0": 8, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7}
"""ggml type numbers (ggml.h of the pinned build) of the KV cache types."""

_PENALISED = 1 << 14  # tokens that a penalty looks back
_ABORTED = 2  # llama_decode's code after an abort callback said so
_PARTIAL_ONLY = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY of the pinned build

_BUFFER_SIZE = re.compile(r"buffer size = +([0-9.]+) MiB")

_log_lines: deque[str] = deque(maxlen=200)
_log_callback: Any = None  # ctypes callbacks must outlive every call
_lib: Any = None


def _llama() -> Any:
    """llama_cpp, imported on first use, its log captured, its version checked."""
    global _lib, _log_callback
    if _lib is not None:
        return _lib
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise EngineUnavailable(
            "llama_cpp cannot be imported",
            got=error,
            hint="run the checkout's `make demo` or `taliesin doctor`",
        ) from error
    found = metadata.version("llama-cpp-python")
    if found != SUPPORTED_VERSION:
        raise EngineUnavailable(
            "this llama-cpp-python is not the one whose state layout is known",
            expected=SUPPORTED_VERSION,
            got=found,
            hint=f"pip install llama-cpp-python=={SUPPORTED_VERSION}, built with "
            "CMAKE_ARGS=-DGGML_NATIVE=OFF",
        )

    def keep(level: int, text: bytes, _user: object) -> None:
        if level != 1:  # ggml's debug level: one line for each input of each layer
            _log_lines.append(text.decode("utf-8", "replace").rstrip("\n"))

    _log_callback = llama_cpp.llama_log_callback(keep)
    llama_cpp.llama_log_set(_log_callback, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    _lib = llama_cpp
    return _lib


def last_log(n: int = 3) -> str:
    """The last lines that llama.cpp logged, for an error message."""
    return " / ".join(line for line in list(_log_lines)[-n:] if line.strip())


@cache
def build_info() -> dict[str, object]:
    """Version and compiled-in features of the engine: `llama_cpp_python`, `instruction_set`
    (sorted, `AVX2=1 ...`), `libraries`.

    `libraries` maps each shared library's name to its path, for hashing. Needs no model. Looked up
    once: every graft compares recipes.
    """
    lib = _llama()
    text = lib.llama_print_system_info().decode()
    features = sorted(
        {" ".join(part.split()).replace(" = ", "=") for part in text.split("|") if part.strip()}
    )
    folder = Path(lib.__file__).parent / "lib"
    libraries = {
        p.name: p.resolve() for p in sorted(folder.glob("*.so")) + sorted(folder.glob("*.dylib"))
    }
    return {
        "llama_cpp_python": SUPPORTED_VERSION,
        "instruction_set": " ".join(features),
        "libraries": libraries,
        "supports_gpu": bool(lib.llama_supports_gpu_offload()),
    }


@dataclass(frozen=True)
class Settings:
    """How a context computes. Every field but `n_ctx` can change a bit of the logits and is part of
    a block's recipe.
    """

    n_ctx: int = 4096
    n_ubatch: int = 512
    n_threads: int = 2
    flash_attn: bool = True
    type_k: str = "f16"
    type_v: str = "f16"
    swa_full: bool = False
    n_seq_max: int = 1
    offload_kqv: bool = True
    op_offload: bool = True

    def checked(self) -> Self:
        """Self, or UsageError naming the field that is out of range."""
        for name, low, high in (
            ("n_ctx", 1, 1 << 24),
            ("n_ubatch", 1, 1 << 16),
            ("n_threads", 1, 512),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name} is out of range", expected=f"{low}..{high}", got=value)
        for name in ("type_k", "type_v"):
            if getattr(self, name) not in KV_TYPES:
                raise UsageError(
                    f"unknown KV cache type {name}",
                    expected=", ".join(KV_TYPES),
                    got=getattr(self, name),
                )
        if self.type_v != "f16" and not self.flash_attn and self.type_v not in ("f32", "bf16"):
            raise UsageError(
                "a quantised V cache needs flash attention", hint="leave flash attention on"
            )
        return self


class Model:
    """A loaded GGUF model. Gives facts about it and turns text into tokens and back.

    Raises:
        ModelError: the file does not load.
        UnsupportedModel: its memory is one that the verifier has not passed (recurrent, hybrid,
        encoder, diffusion, M-RoPE).
    """

    def __init__(self, path: Path, n_gpu_layers: int = 0, *, vocab_only: bool = False) -> None:
        """`vocab_only`: tokens and metadata without the weights, for an engine that computes
        elsewhere.
        """
        self._lib = lib = _llama()
        self.path = path
        self.n_gpu_layers = n_gpu_layers
        params = lib.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        params.vocab_only = vocab_only
        _log_lines.clear()
        self._pointer = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self._pointer:
            raise ModelError(
                "llama.cpp could not load the model",
                where=path,
                got=last_log(),
                hint="taliesin model verify",
            )
        self.devices = _devices(list(_log_lines)) if n_gpu_layers else ["CPU"]
        self._vocab = lib.llama_model_get_vocab(self._pointer)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(self._pointer)
        self.window: int = lib.llama_model_n_swa(self._pointer)
        self.architecture = self.metadata("general.architecture") or "unknown"
        if vocab_only:  # llama.cpp then stops reading before these
            self.n_ctx_train = int(self.metadata(f"{self.architecture}.context_length") or 0)
            self.window = int(self.metadata(f"{self.architecture}.attention.sliding_window") or 0)
        self.bos: int = lib.llama_vocab_bos(self._vocab)
        self.eos: int = lib.llama_vocab_eos(self._vocab)
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(self._vocab))
        self.has_tokenizer = lib.llama_vocab_type(self._vocab) != 0
        self.end_of_generation = frozenset(
            i for i in range(self.n_vocab) if lib.llama_vocab_is_eog(self._vocab, i)
        )
        self._refuse_unverified()

    def _refuse_unverified(self) -> None:
        lib, model = self._lib, self._pointer
        reasons = {
            "recurrent layers: their state cannot be put back at a token "
            "offset": lib.llama_model_is_recurrent(model),
            "hybrid memory (attention with recurrent layers)": lib.llama_model_is_hybrid(model),
            "an encoder": lib.llama_model_has_encoder(model),
            "diffusion decoding": lib.llama_model_is_diffusion(model),
            # llama_rope_type: 8 = M-RoPE, 24 = vision, 40 = interleaved M-RoPE: cells carry 2-D
            # positions
            "multi-dimensional RoPE": lib.llama_model_rope_type(model) in (8, 24, 40),
        }
        found = [reason for reason, holds in reasons.items() if holds]
        if found:
            self.close()
            raise UnsupportedModel(
                f"a graft on a model of architecture {self.architecture!r} has not been proven "
                f"exact: it has {found[0]}",
                where=self.path,
                hint="use a model with plain or sliding-window attention",
            )

    def metadata(self, key: str) -> str | None:
        """A GGUF metadata value as text, or None."""
        size = 1 << 12
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = self._lib.llama_model_meta_val_str(self._pointer, key.encode(), buffer, size)
            if length < 0:
                return None
            if length < size:
                return buffer.value.decode("utf-8", "replace")
            size = length + 1

    @cached_property
    def rope(self) -> dict[str, str]:
        """Every `*.rope.*` entry of the file's metadata: with the file's hash they say the same;
        they name *why* two differ.
        """
        keys = (
            "freq_base",
            "freq_base_swa",
            "scaling.type",
            "scaling.factor",
            "scaling.original_context_length",
        )
        found = {key: self.metadata(f"{self.architecture}.rope.{key}") for key in keys}
        return {key: value for key, value in found.items() if value is not None}

    def chat_template(self) -> str | None:
        text = self._lib.llama_model_chat_template(self._pointer, None)
        return text.decode("utf-8", "replace") if text else None

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Token ids of `text`, without BOS. With `special=False` a string such as `<|im_end|>`
        stays text.
        """
        if not self.has_tokenizer:
            raise UsageError(
                "this model file has no tokenizer", where=self.path, hint="pass token ids"
            )
        data = text.encode("utf-8", "surrogatepass")
        size = len(data) + 8
        while True:
            buffer = (ctypes.c_int32 * size)()
            n = self._lib.llama_tokenize(self._vocab, data, len(data), buffer, size, False, special)
            if n >= 0:
                return list(buffer[:n])
            size = -n

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that a token stands for (control tokens only with `special`)."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = self._lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            size = -n

    def text(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return b"".join(self.piece(t, special=special) for t in tokens).decode("utf-8", "replace")

    def close(self) -> None:
        if self._pointer:
            self._lib.llama_model_free(self._pointer)
            self._pointer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _devices(log: list[str]) -> list[str]:
    """Names of the devices that llama.cpp said it uses while loading (its bindings have no call
    that lists them).
    """
    found = [m.group(1) for line in log if (m := re.search(r"using device (\w+ \([^)]*\))", line))]
    return list(dict.fromkeys(found)) or ["CPU"]


class Decoder:
    """Turns tokens into text as they come: bytes of an unfinished character wait for the next
    token.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(self._model.piece(token))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. `temperature` 0 is greedy; `grammar` is GBNF (root rule
    `root`); penalties count generated tokens, none of the prompt; logit_bias: (id, what is added).
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int = 0
    grammar: str | None = None
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()


class Sampler:
    """A llama.cpp sampler chain for one generation."""

    def __init__(self, model: Model, sampling: Sampling) -> None:
        self._lib = lib = model._lib
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        self._add_biases(model, sampling)
        if sampling.grammar is not None:
            grammar = lib.llama_sampler_init_grammar(
                model._vocab, sampling.grammar.encode(), b"root"
            )
            if not grammar:
                raise UsageError("the grammar does not parse as GBNF", got=last_log())
            lib.llama_sampler_chain_add(self._chain, grammar)
        if sampling.temperature <= 0:
            lib.llama_sampler_chain_add(self._chain, lib.llama_sampler_init_greedy())
        else:
            lib.llama_sampler_chain_add(self._chain, lib.llama_sampler_init_top_k(sampling.top_k))
            lib.llama_sampler_chain_add(
                self._chain, lib.llama_sampler_init_top_p(sampling.top_p, 1)
            )
            lib.llama_sampler_chain_add(
                self._chain, lib.llama_sampler_init_min_p(sampling.min_p, 1)
            )
            lib.llama_sampler_chain_add(
                self._chain, lib.llama_sampler_init_temp(sampling.temperature)
            )
            lib.llama_sampler_chain_add(self._chain, lib.llama_sampler_init_dist(sampling.seed))

    def _add_biases(self, model: Model, sampling: Sampling) -> None:
        lib, biases = self._lib, sampling.logit_bias
        if biases:
            array = (lib.llama_logit_bias * len(biases))(*biases)
            lib.llama_sampler_chain_add(
                self._chain, lib.llama_sampler_init_logit_bias(model.n_vocab, len(biases), array)
            )
        penalties = (
            sampling.repeat_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        )
        if penalties != (1.0, 0.0, 0.0):
            lib.llama_sampler_chain_add(
                self._chain,
                lib.llama_sampler_init_penalties(model.n_vocab, _PENALISED, *penalties),
            )

    def sample(self, context: Context) -> int:
        return int(self._lib.llama_sampler_sample(self._chain, context._pointer, -1))

    def close(self) -> None:
        if self._chain:
            self._lib.llama_sampler_free(self._chain)
            self._chain = None


class Interrupted(DecodeError):
    """Somebody wanted no result any more."""

    kind = "interrupted"


class Interrupt:
    """Ends what a context computes, from any thread (`Context.obey`). Backends other than the CPU's
    look at it only between batches.
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(2)
        # llama.cpp asks for every node of the graph whether to stop. libc's strlen of our bytes is
        # that answer, without Python and its lock: 0 goes on.
        self._strlen = ctypes.CDLL(None).strlen

    def set(self) -> None:
        """`Context.decode` raises Interrupted soon, now and from now on."""
        self._text[0] = b"!"

    def clear(self) -> None:
        self._text[0] = b"\0"


def _context_params(lib: Any, settings: Settings) -> Any:
    """llama.cpp's own parameters for `settings`."""
    params = lib.llama_context_default_params()
    params.n_ctx = settings.n_ctx
    params.n_batch = params.n_ubatch = settings.n_ubatch
    params.n_seq_max = settings.n_seq_max
    params.n_threads = params.n_threads_batch = settings.n_threads
    # never AUTO: what is recorded is what runs
    params.flash_attn_type = int(settings.flash_attn)
    params.type_k, params.type_v = KV_TYPES[settings.type_k], KV_TYPES[settings.type_v]
    params.swa_full = settings.swa_full
    params.kv_unified = True
    params.offload_kqv, params.op_offload = settings.offload_kqv, settings.op_offload
    params.no_perf = True
    return params


@dataclass
class Context:
    """One sequence's KV cache and the computation over it.

    `buffer_bytes` is what llama.cpp said it allocated: KV cache, compute and output buffers, host
    and device together. `n_cleared` and `n_decoded` tell whoever put something into the context
    whether it is still there alone.

    Positions are handed in by the caller and never guessed. A batch is decoded in pieces of
    `n_ubatch` counted from its own first
    token, as llama.cpp does itself: a block that ends on a multiple of `n_ubatch` therefore splits
    like the one-shot prompt.

    Raises (constructor):
        DecodeError: llama.cpp refused the settings.
        UnsupportedModel: the memory has other parts than one ordinary and at most one window cache.
    """

    model: Model
    settings: Settings
    _pointer: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        lib, model = self.model._lib, self.model
        settings = self.settings.checked()
        # n_ctx is no part of the recipe as long as it does not cut the ring short.
        n_ctx = max(
            settings.n_ctx,
            model.window * settings.n_seq_max + settings.n_ubatch if model.window else 0,
            256,
        )
        self.settings = settings = replace(settings, n_ctx=-(-n_ctx // 256) * 256)
        params = _context_params(lib, settings)
        _log_lines.clear()
        self._pointer = lib.llama_init_from_model(model._pointer, params)
        if not self._pointer:
            raise DecodeError(
                "llama.cpp refused the context settings", got=last_log(), where=settings
            )
        self._memory = lib.llama_get_memory(self._pointer)
        if not self._memory:
            self.close()
            raise UnsupportedModel("this model keeps no KV cache", where=model.path)
        self._batch = lib.llama_batch_init(settings.n_ubatch, 0, 1)
        self.buffer_bytes = sum(
            int(float(m[1]) * (1 << 20)) for line in _log_lines if (m := _BUFFER_SIZE.search(line))
        )
        self._state_parts()
        self.n_decoded = 0
        self.n_cleared = 0
        self._empty = True  # as it was made, or cleared

    def _state_parts(self) -> None:
        """Learn from an empty state how many caches there are: prefix, then 8 bytes for each."""
        parts, rest = divmod(self.state_bytes() - 8, 8)
        windowed = bool(self.model.window) and not self.settings.swa_full
        self.n_parts = parts
        if rest or parts not in (1, 2) or (parts == 2) != bool(self.model.window):
            self.close()
            raise UnsupportedModel(
                f"the memory of architecture {self.model.architecture!r} is not one the "
                "verifier has passed",
                expected="one ordinary cache, or one ordinary and one window cache",
                got=f"{parts} cache parts, window {self.model.window}",
            )
        self.ring = (
            placement.ring_cells(
                self.model.window,
                self.settings.n_ubatch,
                self.settings.n_seq_max,
                self.settings.n_ctx,
            )
            if windowed
            else 0
        )

    def decode(
        self, tokens: Sequence[int] | npt.NDArray[np.int32], position: int, *, logits: bool = True
    ) -> npt.NDArray[np.float32] | None:
        """Decode `tokens` at `position`, `position` + 1, ...; logits of the last as a copy, shape
        (n_vocab,) float32.

        Raises:
            ContextFull: they do not fit in `n_ctx`.
            DecodeError: llama.cpp refused, or a token id is out of range.
            Interrupted: see `obey`; the context is empty.
        """
        ids = np.asarray(tokens, np.int32)
        if not len(ids):
            raise DecodeError("nothing to decode", expected="at least one token", got="none")
        if position + len(ids) > self.settings.n_ctx:
            raise ContextFull(
                "the context is full",
                expected=f"at most {self.settings.n_ctx} tokens",
                got=position + len(ids),
                hint="a larger --ctx, or fewer tokens",
            )
        if ids.min() < 0 or ids.max() >= self.model.n_vocab:
            raise DecodeError(
                "token id out of range", expected=f"0..{self.model.n_vocab - 1}", got=int(ids.max())
            )
        lib, batch = self.model._lib, self._batch
        self._empty = False
        for start in range(0, len(ids), self.settings.n_ubatch):
            part = ids[start : start + self.settings.n_ubatch]
            batch.n_tokens = n = len(part)
            ctypes.memmove(batch.token, np.ascontiguousarray(part).ctypes.data, 4 * n)
            positions = np.arange(position + start, position + start + n, dtype=np.int32)
            ctypes.memmove(batch.pos, positions.ctypes.data, 4 * n)
            for i in range(n):
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = 0
            batch.logits[n - 1] = logits and start + n == len(ids)
            code = lib.llama_decode(self._pointer, batch)
            if code == _ABORTED:
                self.clear()
                raise Interrupted("the computation was interrupted")
            if code:
                raise DecodeError(
                    "llama_decode failed",
                    expected=0,
                    got=f"{code} ({last_log()})",
                    where=f"position {position + start}",
                )
            self.n_decoded += n
        return self.logits() if logits else None

    def logits(self) -> npt.NDArray[np.float32]:
        """Logits of the last decoded token as a copy, shape (n_vocab,) float32."""
        pointer = self.model._lib.llama_get_logits_ith(self._pointer, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.model.n_vocab,)).astype(
            np.float32, copy=True
        )

    def obey(self, interrupt: Interrupt) -> None:
        """Let `interrupt` end what this context computes; the context is empty then."""
        self._interrupt = interrupt  # its bytes must outlive every call
        lib = self.model._lib
        lib.llama_set_abort_callback(
            self._pointer,
            ctypes.cast(interrupt._strlen, lib.ggml_abort_callback),
            ctypes.cast(interrupt._text, ctypes.c_void_p),
        )

    def synchronize(self) -> None:
        self.model._lib.llama_synchronize(self._pointer)

    def state_bytes(self) -> int:
        """Size of sequence 0's state, without copying it."""
        return int(self.model._lib.llama_state_seq_get_size(self._pointer, 0))

    def state(self) -> memoryview:
        """Sequence 0's state: pruned to the window on window layers, as llama.cpp writes it."""
        n = self.state_bytes()
        buffer = (ctypes.c_uint8 * n)()
        written = self.model._lib.llama_state_seq_get_data(self._pointer, buffer, n, 0)
        if written != n:
            raise DecodeError(
                "llama.cpp did not write the whole state", expected=n, got=written, where=last_log()
            )
        return memoryview(buffer).cast("B")

    def partial_state(self) -> memoryview:
        """The parts of sequence 0's state that do not grow with its length: the window cache as in
        `state`, then a recurrent memory. Small, so that it can be taken at every boundary.
        """
        lib = self.model._lib
        n = int(lib.llama_state_seq_get_size_ext(self._pointer, 0, _PARTIAL_ONLY))
        buffer = (ctypes.c_uint8 * n)()
        written = lib.llama_state_seq_get_data_ext(self._pointer, buffer, n, 0, _PARTIAL_ONLY)
        if written != n:
            raise DecodeError(
                "llama.cpp did not write the whole partial state",
                expected=n,
                got=written,
                where=last_log(),
            )
        return memoryview(buffer).cast("B")

    def restore(self, state: memoryview) -> None:
        """Hand a state to llama.cpp for sequence 0. The buffer is writable memory of the caller's,
        read before this returns.

        Raises:
            DecodeError: llama.cpp refused it; the sequence is then empty.
        """
        n = len(state)
        self._empty = False
        buffer = (ctypes.c_uint8 * n).from_buffer(state)
        if self.model._lib.llama_state_seq_set_data(self._pointer, buffer, n, 0) != n:
            reason = last_log()
            self.clear()
            raise DecodeError(
                "llama.cpp refused the state",
                got=reason,
                hint="save the block again with this build",
            )

    def remove(self, p0: int, p1: int) -> None:
        """Remove positions [`p0`, `p1`) of sequence 0."""
        if not self.model._lib.llama_memory_seq_rm(self._memory, 0, p0, p1):
            raise DecodeError("llama.cpp could not remove positions", got=f"[{p0}, {p1})")

    def shift(self, by: int) -> None:
        """Move every position of sequence 0 by `by` (llama.cpp re-rotates K at the next decode):
        never exact, for `shift`.
        """
        self.model._lib.llama_memory_seq_add(self._memory, 0, -1, -1, by)

    def clear(self) -> None:
        """Empty the cache, data included, and put every write head back to 0; nothing to do where
        it is so already.
        """
        if self._empty:
            return
        self._empty = True
        self.model._lib.llama_memory_clear(self._memory, True)
        self.n_cleared += 1

    def position_range(self) -> tuple[int, int]:
        """Smallest and largest position that sequence 0 still holds in every cache; (-1, -1) when
        empty.
        """
        lib = self.model._lib
        return lib.llama_memory_seq_pos_min(self._memory, 0), lib.llama_memory_seq_pos_max(
            self._memory, 0
        )

    @property
    def closed(self) -> bool:
        return not self._pointer

    def close(self) -> None:
        if getattr(self, "_batch", None) is not None:
            self.model._lib.llama_batch_free(self._batch)
            self._batch = None
        if self._pointer:
            self.model._lib.llama_free(self._pointer)
            self._pointer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()


def greedy(
    context: Context, tokens: Sequence[int], position: int, n_steps: int
) -> Iterator[npt.NDArray[np.float32]]:
    """Decode `tokens` at `position`, then `n_steps` greedy tokens one by one; every logits vector,
    1 + `n_steps` of them.
    """
    pending = list(tokens)
    for _ in range(1 + n_steps):
        logits = context.decode(pending, position)
        assert logits is not None
        yield logits
        position += len(pending)
        pending = [int(logits.argmax())]
