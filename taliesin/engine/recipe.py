"""The recipe of a block: everything that can change a bit of what is computed after it, and how two
recipes differ.

Two kinds of fields, because two questions are asked:

* *Identity.* Fields that decide which numbers come out (model, engine version, instruction set,
  batch split, threads, attention, cache types, window layout, device, environment switches). One
  differs: not the same computation, and a graft is refused.
* *Evidence* (under `evidence`). Facts that should not matter and that nobody can promise: the CPU's
  name, the hashes of the engine's libraries (another compiler, another build folder), the GPU
  driver. They differ after an upgrade or on another machine. A graft then goes ahead only after the
  block's certificate has been re-run here and has held.

Each field was put here by a measurement or a known report; `docs/exactness.md` has the table. What
is absent on purpose: `n_ctx` and asking for one or all logits (measured: no bit changes), as long
as `n_ctx` does not cut the window ring short.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from taliesin.errors import RecipeMismatch
from taliesin.host import machine

if TYPE_CHECKING:
    from taliesin.engine.llama import Context, Model, Settings

Recipe = dict[str, Any]

# Variables that cannot reach a result: where to log, where to cache, arguments of llama.cpp's own
# programs.
_HARMLESS_ENVIRONMENT = (
    "LLAMA_LOG",
    "LLAMA_CACHE",
    "LLAMA_ARG_",
    "LLAMA_OFFLINE",
    "GGML_NO_BACKTRACE",
)

# Fields that no setting of this machine can bridge: another computation, or a state that does not
# fit.
UNBRIDGEABLE = (
    "model_sha256",
    "engine",
    "type_k",
    "type_v",
    "flash_attn",
    "swa_full",
    "n_seq_max",
    "kv_unified",
)


class Difference(NamedTuple):
    """One field that differs, with both values."""

    field: str
    stored: object
    here: object

    def __str__(self) -> str:
        return f"{self.field}: stored {self.stored!r}, here {self.here!r}"


def of_context(context: Context, model_sha256: str) -> Recipe:
    """The recipe of what `context` computes, JSON-ready."""
    from taliesin.engine import llama

    info = llama.build_info()
    libraries = info["libraries"]
    assert isinstance(libraries, dict)
    model = context.model
    return {
        "engine": "embedded",
        "model_sha256": model_sha256,
        "llama_cpp_python": info["llama_cpp_python"],
        "instruction_set": info["instruction_set"],
        "devices": model.devices,
        "n_gpu_layers": model.n_gpu_layers,
        "kv_unified": True,
        "window_ring_cells": context.ring,
        "environment": environment(os.environ),
        **of_settings(context.settings, model),
        "evidence": {
            **evidence(on_gpu=bool(model.n_gpu_layers)),
            "libraries": dict(_hashes(tuple(sorted(libraries.items())))),
        },
    }


def of_settings(settings: Settings, model: Model) -> Recipe:
    """The fields that settings and model decide, whatever engine computes."""
    return {
        "architecture": model.architecture,
        "split": f"pieces of n_ubatch from the first token: {settings.n_ubatch}",
        "n_ubatch": settings.n_ubatch,
        "n_threads": settings.n_threads,
        "flash_attn": settings.flash_attn,
        "type_k": settings.type_k,
        "type_v": settings.type_v,
        "swa_full": settings.swa_full,
        "n_seq_max": settings.n_seq_max,
        "window": model.window,
        "offload_kqv": settings.offload_kqv,
        "op_offload": settings.op_offload,
        "rope": dict(model.rope),
        "adapters": [],
    }


def evidence(on_gpu: bool) -> dict[str, str | None]:
    """What is known of this machine beside the engine's libraries."""
    return {
        "cpu": machine.cpu_name(),
        "system": machine.system(),
        "driver": machine.driver_version() if on_gpu else None,
    }


@cache
def _hashes(libraries: tuple[tuple[str, Path], ...]) -> dict[str, str]:
    """SHA-256 of the engine's libraries. Once: what is loaded stays what it was when the process
    began.
    """
    from taliesin.models import resolve as models

    return {name: models.file_sha256(path) for name, path in libraries}


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that llama.cpp and ggml read and that may change numbers (for example
    LLAMA_ATTN_ROT_DISABLE).
    """
    return {
        name: value
        for name, value in sorted(variables.items())
        if name.startswith(("GGML_", "LLAMA_")) and not name.startswith(_HARMLESS_ENVIRONMENT)
    }


def identity_differences(stored: Mapping[str, Any], here: Mapping[str, Any]) -> list[Difference]:
    """Identity fields that differ, a field that only one side knows included; sorted by name."""
    names = sorted((set(stored) | set(here)) - {"evidence"})
    return [
        Difference(n, stored.get(n), here.get(n)) for n in names if stored.get(n) != here.get(n)
    ]


def evidence_differences(stored: Mapping[str, Any], here: Mapping[str, Any]) -> list[Difference]:
    """Evidence fields that differ; sorted by name."""
    ours, theirs = here.get("evidence", {}), stored.get("evidence", {})
    return [
        Difference(n, theirs.get(n), ours.get(n))
        for n in sorted(set(ours) | set(theirs))
        if theirs.get(n) != ours.get(n)
    ]


def require(
    stored: Mapping[str, Any], here: Mapping[str, Any], *, where: object, inexact: bool = False
) -> list[Difference]:
    """The identity differences that `inexact` lets pass (none, unless it was asked for).

    Raises:
        RecipeMismatch: a field differs and `inexact` is false, or a field differs that nothing can
        bridge.
    """
    differences = identity_differences(stored, here)
    fatal = [d for d in differences if d.field in UNBRIDGEABLE]
    if fatal or (differences and not inexact):
        model = any(d.field == "model_sha256" for d in differences)
        raise RecipeMismatch(
            "the block was computed by another model"
            if model
            else "the block was computed under another recipe",
            got="; ".join(map(str, differences)),
            where=where,
            hint="name the block's own model with --model"
            if model
            else "a state of this kind does not fit here: save the text again"
            if fatal
            else "match the settings, save the text again, or graft with --inexact and a label "
            "on the result",
        )
    return differences


def server_inexactness(
    *,
    n_slots: int,
    kv_unified: bool,
    slot_prompt_similarity: float,
    cache_ram_mib: int,
    ctx_checkpoints: int,
) -> list[str]:
    """Why an answer of a llama-server with these options may not be called exact; empty for those
    that were measured exact (docs/server.md).
    """
    reasons = {
        "--kv-unified with several slots: what other slots hold changes the order of sums": (
            kv_unified and n_slots > 1
        ),
        "--cache-ram: the server may save and reload a slot by itself between restore and "
        "request": cache_ram_mib != 0,
        "--ctx-checkpoints: the server splits prompts where it makes checkpoints": (
            ctx_checkpoints != 0
        ),
        "--slot-prompt-similarity: the server may choose another slot, or reload this one": (
            slot_prompt_similarity != 0
        ),
    }
    return [reason for reason, holds in reasons.items() if holds]


def of_embedded_twin(recipe: Mapping[str, Any]) -> Recipe:
    """The recipe under which the embedded engine computes what a llama-server with this one
    computes.

    Raises:
        RecipeMismatch: it is not a llama-server's, or its options were not exact ones.
    """
    own = recipe.get("server")
    if recipe.get("engine") != "llama-server" or not isinstance(own, dict):
        raise RecipeMismatch("not the recipe of a llama-server", got=recipe.get("engine"))
    names = ("kv_unified", "slot_prompt_similarity", "cache_ram_mib", "ctx_checkpoints")
    try:
        reasons = server_inexactness(n_slots=own["slots"], **{name: own[name] for name in names})
        if not isinstance(own["slots"], int) or own["slots"] < 1:
            reasons = [f"its recipe is malformed: slots {own['slots']!r}"]
    except (KeyError, TypeError) as error:
        reasons = [f"its recipe is malformed: {error}"]
    if reasons:
        raise RecipeMismatch(
            "the block was saved by a server whose options are not exact", got="; ".join(reasons)
        )
    return {k: v for k, v in recipe.items() if k != "server"} | {
        "engine": "embedded",
        "kv_unified": True,
    }
