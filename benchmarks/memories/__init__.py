"""One small seeded GGUF file for every kind of memory that llama.cpp has.

    python -m benchmarks.memories --list
    python -m benchmarks.memories lfm2 out.gguf

Whether a graft is exact depends on how a model remembers and not on what its weights say, so a
file of a megabyte with random weights stands in for each architecture. `FAMILIES` is the registry,
`write` makes a file, with a byte tokenizer if asked; without one prompts are token ids. What
llama.cpp does with each file is measured elsewhere; nothing here imports it.
"""

from __future__ import annotations

from . import hybrid, plain, window
from .fill import write
from .shape import VOCAB, Family

_MODULES = (plain, window, hybrid)
FAMILIES: dict[str, Family] = {f.name: f for module in _MODULES for f in module.FAMILIES}

__all__ = ["FAMILIES", "VOCAB", "Family", "write"]
