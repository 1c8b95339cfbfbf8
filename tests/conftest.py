"""Models that several tests share. A missing real model skips its tests; `make test` gets the two it needs first."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest

from taliesin import models
from taliesin.errors import ModelError

# No timed assertion: machines are shared and slow at times. The same examples every time: a red run can be repeated.
hypothesis.settings.register_profile("untimed", deadline=None, derandomize=True)
hypothesis.settings.load_profile("untimed")


def _resolved(name: str) -> Path:
    try:
        return models.resolve(name)
    except ModelError:
        pytest.skip(f"the model {name} is not here: taliesin model pull {name}")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M: real weights, no window layers, a chat template."""
    return _resolved("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma-3-270M: real weights, a window of 512 in five layers of six."""
    return _resolved("gemma3-270m")


@pytest.fixture(scope="session")
def synthesise() -> ModuleType:
    """`benchmarks/synthesise.py`."""
    path = Path(__file__).parent.parent / "benchmarks" / "synthesise.py"
    spec = importlib.util.spec_from_file_location("synthesise", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["synthesise"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def gemma4(tmp_path_factory: pytest.TempPathFactory, synthesise: ModuleType) -> Path:
    """Gemma-4's shape with random weights: head sizes that differ, global layers without V, shared KV, a window of 128."""
    path = tmp_path_factory.mktemp("gemma4") / "gemma4.gguf"
    written: Path = synthesise.write(path, synthesise.SHAPES["gemma4-tiny-shared"])
    return written
