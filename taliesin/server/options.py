"""What a llama-server computes with, and the command line that says so.

Promises: the defaults are the options that were measured exact (docs/server.md), and for every
other one `inexact` names the reason. Deliberately does not know: processes and HTTP.
"""

from __future__ import annotations

from taliesin.engine import recipe as recipes
from taliesin.engine.llama import KV_TYPES
from taliesin.errors import UsageError
from taliesin.host.records import Record

COMMIT = "0c1e570"
"""The llama.cpp commit of the pinned llama-cpp-python: the only one whose slot files and reuse
rules are known here.
"""

MAX_SLOTS = 256
"""LLAMA_MAX_SEQ of llama.cpp."""


class Options(Record):
    """What a llama-server computes with. The defaults are the ones that were measured exact
    (docs/server.md).

    n_ctx: tokens of one slot; n_slots: slots, each with a cache stream of its own unless
    `kv_unified`.
    """

    n_slots: int = 1
    n_ctx: int = 4096
    n_ubatch: int = 512
    n_threads: int = 2
    flash_attn: bool = True
    type_k: str = "f16"
    type_v: str = "f16"
    gpu_layers: int = 0
    swa_full: bool = False
    kv_unified: bool = False
    slot_prompt_similarity: float = 0.0
    cache_ram_mib: int = 0
    ctx_checkpoints: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("n_slots", 1, MAX_SLOTS),
            ("n_ctx", 256, 1 << 24),
            ("n_ubatch", 1, 1 << 16),
            ("n_threads", 1, 512),
        ):
            if not low <= getattr(self, name) <= high:
                raise UsageError(
                    f"{name} is out of range", expected=f"{low}..{high}", got=getattr(self, name)
                )
        for name in ("type_k", "type_v"):
            if getattr(self, name) not in KV_TYPES:
                raise UsageError(
                    f"unknown KV cache type {name}",
                    expected=", ".join(KV_TYPES),
                    got=getattr(self, name),
                )

    def arguments(self) -> list[str]:
        """The command line that says this to llama-server."""
        cells = self.n_ctx if self.kv_unified else self.n_ctx * self.n_slots
        flag = {True: "on", False: "off"}
        return [
            *("--parallel", str(self.n_slots), "--ctx-size", str(cells)),
            *("--batch-size", str(self.n_ubatch), "--ubatch-size", str(self.n_ubatch)),
            *("--threads", str(self.n_threads), "--threads-batch", str(self.n_threads)),
            *(
                "--flash-attn",
                flag[self.flash_attn],
                "--cache-type-k",
                self.type_k,
                "--cache-type-v",
                self.type_v,
            ),
            *("--n-gpu-layers", str(self.gpu_layers), "--fit", "off"),
            "--kv-unified" if self.kv_unified else "--no-kv-unified",
            *(["--swa-full"] if self.swa_full else []),
            *("--slot-prompt-similarity", str(self.slot_prompt_similarity)),
            *(
                "--cache-ram",
                str(self.cache_ram_mib),
                "--ctx-checkpoints",
                str(self.ctx_checkpoints),
            ),
            *([] if self.cache_ram_mib else ["--no-cache-idle-slots"]),
        ]

    def n_stream(self) -> int:
        """Streams of the server's KV cache, which its slot files repeat."""
        return 1 if self.kv_unified else self.n_slots

    def inexact(self) -> list[str]:
        """Why an answer of this server may not be called exact; empty for the options that were
        measured exact.
        """
        return recipes.server_inexactness(
            n_slots=self.n_slots,
            kv_unified=self.kv_unified,
            slot_prompt_similarity=self.slot_prompt_similarity,
            cache_ram_mib=self.cache_ram_mib,
            ctx_checkpoints=self.ctx_checkpoints,
        )
