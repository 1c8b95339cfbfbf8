"""A model that says what it was told to, for tests of the bank and of what is asked after its
blocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from galahad import sandbox
from galahad.answerer.engines import Completion
from galahad.answerer.reader import SavedBlock
from taliesin.errors import CertificateMismatch
from taliesin.store.blockfile import BlockFile
from taliesin.store.header import BlockHeader
from taliesin.store.library import Library


@dataclass
class ScriptedReader:
    """Obeys `galahad.reader.Reader`. `says` maps a block's name (None: no block), or a part of the
    question, to its answers in turn.
    """

    says: dict[str | None, list[str]] = field(default_factory=dict)
    model: str = "script"
    asked: list[dict[str, object]] = field(default_factory=list)
    certificates_hold: bool = True

    @property
    def model_sha256(self) -> str:
        return hashlib.sha256(self.model.encode()).hexdigest()

    def identity(self) -> dict[str, object]:
        return {"engine": "scripted", "model": self.model, "model_sha256": self.model_sha256}

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
            name, info.id, self.model, self.model_sha256, len(text), info.file_bytes, 0.1, 0.1
        )

    def ask(
        self,
        library: Library | None,
        block: str | None,
        question: str,
        *,
        max_tokens: int,
        grammar: str | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        opening: str = "",
        end: str = "",
    ) -> Completion:
        if library is not None and block is not None:
            library.open(block).close()
        self.asked.append(
            {
                "block": block,
                "question": question,
                "grammar": grammar,
                "seed": seed,
                "opening": opening,
            }
        )
        key = next((key for key in self.says if key is not None and key in question), block)
        text = self.says[key].pop(0) if len(self.says[key]) > 1 else self.says[key][0]
        n_out = min(len(text), max_tokens)
        finish = "length" if len(text) > max_tokens else "stop"
        return Completion(
            opening + text[:max_tokens], finish, 100 if block else 0, 10, n_out, 0.0, 0.0, 0.0
        )  # type: ignore[arg-type]

    def certify(self, block: BlockFile) -> None:
        if not self.certificates_hold:
            raise CertificateMismatch("other numbers", where=block.path)

    def close(self) -> None:
        return


@pytest.fixture
def scripted() -> type[ScriptedReader]:
    return ScriptedReader


@pytest.fixture
def ran() -> Callable[..., sandbox.Execution]:
    """`ran(stdout, status="ok")`: an execution that nobody made."""

    def made(stdout: str, status: sandbox.execution.Status = "ok") -> sandbox.Execution:
        code = 0 if status == "ok" else 1
        return sandbox.Execution(
            status, code, None, stdout, "", False, False, 0.1, 0.1, 1, "kernel", ("seccomp",)
        )

    return made


@pytest.fixture
def prints(
    ran: Callable[..., sandbox.Execution],
) -> Callable[..., Callable[[str, int], sandbox.Verdict]]:
    """`prints(stdout)`: a verifier under which every program prints that."""

    def made(
        stdout: str, status: sandbox.execution.Status = "ok"
    ) -> Callable[[str, int], sandbox.Verdict]:
        return lambda _program, expected: sandbox.judge(ran(stdout, status), expected)

    return made
