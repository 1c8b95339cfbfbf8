"""The recipe of what a llama-server computes, and which of its fields decide the numbers.

The fields of the embedded engine's recipe, and `server` with the server's own. Deliberately does
not know: how recipes are compared (`engine.recipe`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taliesin.engine import llama
from taliesin.engine import recipe as recipes
from taliesin.engine.recipe import Recipe
from taliesin.errors import RecipeMismatch, UsageError
from taliesin.host import filehash
from taliesin.server.options import COMMIT, Options
from taliesin.server.process import Server

SHARED = (
    "model_sha256",
    "architecture",
    "llama_cpp_python",
    "instruction_set",
    "devices",
    "n_gpu_layers",
    "split",
    "n_ubatch",
    "n_threads",
    "flash_attn",
    "type_k",
    "type_v",
    "swa_full",
    "n_seq_max",
    "window",
    "window_ring_cells",
    "offload_kqv",
    "op_offload",
    "rope",
    "adapters",
    "environment",
)
"""Recipe fields that decide the numbers in both engines: equal ones mean the same computation."""


def of_server(
    server: Server,
    settings: llama.Settings,
    model: llama.Model,
    *,
    model_sha256: str,
    build: str,
    n_slots: int,
    ring: int,
) -> Recipe:
    """The recipe of what `server`, of `build` and with `n_slots`, computes under `settings`;
    JSON-ready.
    """
    options, binary = server.options or Options(), server.binary
    return {
        "engine": "llama-server",
        "model_sha256": model_sha256,
        "llama_cpp_python": llama.SUPPORTED_VERSION if COMMIT in build else f"llama.cpp {build}",
        "instruction_set": server.instruction_set() or "unknown",
        "devices": ["unknown"] if options.gpu_layers else ["CPU"],
        "n_gpu_layers": options.gpu_layers,
        "kv_unified": options.kv_unified,
        "window_ring_cells": 0 if settings.swa_full else ring,
        "environment": server.environment,
        **recipes.of_settings(settings, model),
        "server": {
            "build": build,
            "slots": n_slots,
            "kv_unified": options.kv_unified,
            "slot_prompt_similarity": options.slot_prompt_similarity,
            "cache_ram_mib": options.cache_ram_mib,
            "ctx_checkpoints": options.ctx_checkpoints,
        },
        "evidence": {
            **recipes.evidence(on_gpu=bool(options.gpu_layers)),
            "libraries": {"llama-server": filehash.file_sha256(binary)} if binary else {},
        },
    }


def settings_of(options: Options, n_ctx: int, n_slots: int) -> llama.Settings:
    """How a server with `options` computes, in the embedded engine's terms."""
    return llama.Settings(
        n_ctx=n_ctx,
        n_ubatch=options.n_ubatch,
        n_threads=options.n_threads,
        flash_attn=options.flash_attn,
        type_k=options.type_k,
        type_v=options.type_v,
        swa_full=options.swa_full,
        n_seq_max=n_slots if options.kv_unified else 1,
    )


def shared(server: Server) -> tuple[str, ...]:
    """The fields of `SHARED` that are known of `server`."""
    return SHARED if server.options else ("model_sha256", "llama_cpp_python")


def inexact(server: Server, build: str) -> list[str]:
    """Why nothing that this server computes may be called exact; empty for the options that were
    measured.
    """
    if server.options is None:
        return ["the server's options are not known: it was not started by taliesin server start"]
    reasons = server.options.inexact()
    if COMMIT not in build:
        reasons.append(f"llama-server is of build {build!r}, not of commit {COMMIT}")
    return reasons


def options_for(recipe: Mapping[str, Any], n_ctx: int) -> Options:
    """Options of a server that computes as a block's recipe says.

    Raises:
        RecipeMismatch: no server with exact options does.
    """
    names = ("n_ubatch", "n_threads", "flash_attn", "type_k", "type_v", "swa_full")
    try:
        known = {name: recipe[name] for name in names}
        return Options(n_ctx=n_ctx, gpu_layers=recipe.get("n_gpu_layers", 0), **known)
    except (KeyError, TypeError, UsageError) as error:
        raise RecipeMismatch(
            "the block's recipe does not say how a server is to compute", got=error
        ) from error
