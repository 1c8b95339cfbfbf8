"""A model that says what it was told to: the one double of `galahad.answerer.answerer`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from galahad.answerer.answerer import (
    BlockPrefix,
    Completion,
    Finish,
    Request,
    SavedBlock,
    SavedPrefix,
    no_token,
)
from taliesin.errors import CertificateMismatch, ContextFull
from taliesin.store.blockfile import BlockFile
from taliesin.store.header import BlockHeader
from taliesin.store.library import Library


@dataclass
class ScriptedAnswerer:
    """Obeys `BlockAnswerer`. `says` maps the name of a prefix, a part of a question, or None (any
    other request) to an answer, to answers in turn, or to an exception that the request ends in.

    A token is a character, and an answer longer than the request allows is cut; with `n_out` every
    answer has so many tokens and is whole. `asked` are the requests.
    """

    says: Mapping[Any, Any] = field(default_factory=dict)
    model: str = "script"
    n_out: int | None = None
    finish: Finish = "stop"
    certificates_hold: bool = True
    asked: list[Request] = field(default_factory=list)
    _turns: dict[Any, int] = field(default_factory=dict)
    _on_token: Callable[[], None] = field(default_factory=lambda: no_token)

    @property
    def model_sha256(self) -> str:
        return hashlib.sha256(self.model.encode()).hexdigest()

    def identity(self) -> dict[str, object]:
        return {"engine": "scripted", "model": self.model, "model_sha256": self.model_sha256}

    def evidence(self) -> dict[str, object]:
        return {}

    def prepare(self, prefixes: Mapping[str, str]) -> dict[str, SavedPrefix]:
        return {}

    def watch(self, on_token: Callable[[], None]) -> None:
        self._on_token = on_token

    def close(self) -> None:
        return

    def complete(self, requests: Sequence[Request]) -> Iterator[Completion]:
        for request in requests:
            self.asked.append(request)
            self._on_token()
            if isinstance(request.prefix, BlockPrefix):
                request.prefix.library.open(request.prefix.name).close()
            said = self._next(request)
            if isinstance(said, str):
                yield self._completion(request, said)
            elif issubclass(said, ContextFull):
                error = said("too long")
                yield Completion(request=request, text="", finish="stop", error=error)
            else:
                raise said("the script says so")

    def _next(self, request: Request) -> Any:
        name = request.prefix.name if request.prefix is not None else None
        part = next((key for key in self.says if key and key in request.question), None)
        key = name if name is not None and name in self.says else part
        said = self.says[key]
        if not isinstance(said, list):
            return said
        turn = self._turns[key] = self._turns.get(key, -1) + 1
        return said[min(turn, len(said) - 1)]

    def _completion(self, request: Request, said: str) -> Completion:
        cut = self.n_out is None and len(said) > request.max_tokens
        return Completion(
            request=request,
            text=request.opening + (said[: request.max_tokens] if cut else said),
            finish="length" if cut else self.finish,
            n_reused=100 if isinstance(request.prefix, BlockPrefix) else 0,
            n_prefilled=10,
            n_out=min(len(said) if self.n_out is None else self.n_out, request.max_tokens),
            prefill_seconds=0.1,
            decode_seconds=1.0,
            label="scripted",
        )

    def save(self, library: Library, name: str, text: str, title: str) -> SavedBlock:
        header = BlockHeader(
            title=title,
            created="2026-01-31T12:00:00Z",
            recipe={"model_sha256": self.model_sha256},
            equals="block-then-query",
            tokens=np.arange(len(text), dtype=np.int32),
            tail=np.zeros(0, np.int32),
            text=text,
        )
        info = library.put(name, header, hashlib.sha256(text.encode()).digest() * 40, replace=True)
        return SavedBlock(
            name=name,
            id=info.id,
            model=self.model,
            model_sha256=self.model_sha256,
            n_tokens=len(text),
            file_bytes=info.file_bytes,
            prefill_seconds=0.1,
            save_seconds=0.1,
        )

    def certify(self, block: BlockFile) -> None:
        if not self.certificates_hold:
            raise CertificateMismatch("other numbers", where=block.path)
