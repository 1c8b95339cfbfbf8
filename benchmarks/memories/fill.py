"""Seeded weights for a family's tensors, and the file that holds them.

The same family and seed give the same bytes on every machine: values are drawn as integers, each
tensor from a generator of its own, seeded by the file's seed and the tensor's name. What a tensor
is filled with follows from its name and size alone. Nothing here knows architectures.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import tokenizer as byte_tokens
from .shape import Family, Value

_UNIT = 73.3  # standard deviation of integers drawn from -127..127
_EMBEDDING = 0.03  # small: where the output is tied, a token must not answer with itself

# name without layer number -> (middle, spread), in float32; the first pattern that matches is used
_RULES: list[tuple[str, float, float]] = [
    (r"(^|[._])\w*norm\w*\.weight$", 1.0, 0.05),
    (r"^rope_freqs\.weight$", 1.0, 0.1),
    (r"norm\w*\.bias$", 0.0, 0.05),
    (r"^ssm_a$", -0.5, 0.15),  # a decay, must be negative
    (r"^ssm_d$", 1.0, 0.1),
    (r"^ssm_dt(_b)?\.bias$", -4.0, 0.5),  # small steps, so that a state remembers 300 tokens
    (r"(conv1d\w*|shortconv\.conv)\.weight$", 0.0, 0.4),
    (r"\.bias$", 0.0, 0.1),
]


def _values(seed: int, name: str, size: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Integers from -127..127 scaled to a standard deviation of 1, numpy's order of dimensions."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    drawn = rng.integers(-127, 128, size[::-1], dtype=np.int16)
    return (drawn / np.float32(_UNIT)).astype(np.float32)


def filled(seed: int, name: str, size: tuple[int, ...]) -> npt.NDArray[Any]:
    """The tensor's array: float16 matrices of gain 1, float32 for all that `_RULES` names."""
    own = re.sub(r"^blk\.\d+\.", "", name)
    values = _values(seed, name, size)
    for pattern, middle, spread in _RULES:
        if re.search(pattern, own):
            return np.float32(middle) + np.float32(spread) * values
    if own == "token_embd.weight":
        return (values * np.float32(_EMBEDDING)).astype(np.float16)
    scaled = values / np.float32(np.sqrt(size[0]))
    return scaled.astype(np.float16) if len(size) > 1 else scaled


def write(family: Family, path: Path, seed: int = 1, *, tokenizer: bool = False) -> Path:
    """Write the family's file; gives its path. With `tokenizer` it speaks: `tokenizer.add`."""
    import gguf

    shape = family.shape()
    out = gguf.GGUFWriter(path, family.architecture)
    for key, value in shape.metadata.items():
        _add(out, f"{family.architecture}.{key}", value)
    if tokenizer:
        byte_tokens.add(out, shape.vocab)
    else:
        out.add_tokenizer_model("none")
    logits = "output.weight" if "output.weight" in shape.tensors else "token_embd.weight"
    for name, size in shape.tensors.items():
        values = filled(seed, name, size)
        if tokenizer and name == logits:
            byte_tokens.quieten(values)
        out.add_tensor(name, values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def _add(out: Any, key: str, value: Value) -> None:
    if isinstance(value, bool):
        out.add_bool(key, value)
    elif isinstance(value, int):
        out.add_uint32(key, value)
    elif isinstance(value, float):
        out.add_float32(key, value)
    elif isinstance(value, str):
        out.add_string(key, value)
    else:
        out.add_array(key, value)
