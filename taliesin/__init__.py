"""Byte-exact KV blocks on llama.cpp: save a prefilled token block, graft it back at the same token
offset, prove it.

The Python API is `Engine`, `save` and `Library` (docs/api.md); the command line is a thin layer
over it. Names are imported on first use, so that `taliesin --help` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taliesin.engine.backend import Grafted
    from taliesin.engine.embedded import Engine
    from taliesin.engine.llama import Sampling, Settings
    from taliesin.engine.save import save
    from taliesin.store.blockfile import BlockFile
    from taliesin.store.library import Library

__all__ = [
    "BlockFile",
    "Engine",
    "Grafted",
    "Library",
    "Sampling",
    "Settings",
    "__version__",
    "save",
]
__version__ = "0.1.0"

_HOMES = {
    "BlockFile": "store.blockfile",
    "Engine": "engine.embedded",
    "Grafted": "engine.backend",
    "Library": "store.library",
    "Sampling": "engine.llama",
    "Settings": "engine.llama",
    "save": "engine.save",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'taliesin' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"taliesin.{_HOMES[name]}"), name)
