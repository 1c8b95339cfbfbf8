"""A model that says what it was told to (the one double of `galahad.answerer.answerer`), and
records of runs that nobody made.
"""

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
from galahad.livebench.records import Answer, RunSettings, Said
from galahad.measure.arm import Arm, Grade, Row
from galahad.measure.energy import Reading
from galahad.measure.engine import EngineRecord
from galahad.solve.records import (
    Attempt,
    RunHeader,
    SandboxRecord,
    Session,
    SuiteRecord,
    Transcript,
)
from galahad.solve.solver import PassRecord, PassText, RouteRecord, Settings
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


# -- records of runs -------------------------------------------------------------------------------


def run_header(**changes: Any) -> RunHeader:
    fields: dict[str, Any] = {
        "created": "2026-01-01T00:00:00Z",
        "version": "0",
        "suite": SuiteRecord(name="suite.jsonl", sha256="ab" * 32, problems={"p1": "x"}),
        "engine": EngineRecord(engine="embedded", model="script", model_sha256="cd" * 32),
        "settings": Settings(thought_tokens=99, check_tokens=99, program_tokens=99),
        "graft": True,
        "prompts_sha256": "ef" * 32,
        "router": "r",
        "rule": "u",
    }
    return RunHeader(**{**fields, **changes})


def run_session(**changes: Any) -> Session:
    fields: dict[str, Any] = {
        "started": "2026-01-01T00:00:00Z",
        "python": "3.11",
        "system": "x",
        "cpu": "y",
        "engine": {},
        "prefixes": {},
        "sandbox": SandboxRecord(level="full", mechanisms=["bubblewrap"]),
        "energy": "not measured",
    }
    return Session(**{**fields, **changes})


def run_attempt(number: int = 0, **changes: Any) -> Attempt:
    """Attempt `number` at p1 by the program route: it answers 7, which is right, in 10 tokens."""
    answer = changes.get("answer", 7)
    n_out = changes.pop("n_out", 10)
    generation = PassRecord(
        name="program",
        seed=1,
        question_sha256="0" * 64,
        text_sha256="1" * 64,
        finish="length" if answer is None else "stop",
        n_reused=0,
        n_prefilled=50,
        n_out=n_out,
        reuse_seconds=0.0,
        prefill_seconds=0.5,
        decode_seconds=2.0,
    )
    cause = "no-program" if answer is None else "answer"
    fields: dict[str, Any] = {
        "problem": "p1",
        "attempt": number,
        "problem_sha256": "x",
        "answer": answer,
        "confidence": "uncertain",
        "doubts": ("no stated answer",),
        "order": ("program", "thought"),
        "figure_words": 0,
        "count_words": 0,
        "routes": (RouteRecord(route="program", answer=answer, cause=cause),),
        "passes": (generation,),
        "tokens_in": 50,
        "tokens_out": n_out,
        "seconds": 3.0,
        "gold": 7,
        "grade": "none" if answer is None else "right" if answer == 7 else "wrong",
        "energy": reading(),
        "finished": "2026-01-01T00:00:01Z",
    }
    return Attempt(**{**fields, **changes})


def run_transcript(attempt: Attempt, text: str) -> Transcript:
    passes = {"program": PassText(question="q", text=text)}
    return Transcript(problem=attempt.problem, attempt=attempt.attempt, passes=passes, program=None)


def reading(**changes: Any) -> Reading:
    """A reading of a machine without a counter, but for the changes."""
    fields: dict[str, Any] = {
        "joules": None,
        "low": None,
        "high": None,
        "seconds": 3.0,
        "source": "not measured",
        "step_seconds": None,
    }
    return Reading(**{**fields, **changes})


def arm_row(id_: str, grade: Grade, n_out: int, sha256: str = "", **detail: object) -> Row:
    return Row(
        id=id_,
        sha256=sha256,
        gold=1,
        answer=1,
        grade=grade,
        cause="answer",
        block=None,
        n_attempts=1,
        n_reused=0,
        n_prefilled=10,
        n_out=n_out,
        seconds=2.0,
        detail=detail,
    )


def an_arm(kind: str, rows: list[Row], energy: Reading | None = None) -> Arm:
    return Arm.of(kind, {"engine": "scripted", "model": "m"}, {}, rows, energy or reading())


def livebench_said(right: bool, score: float = 0.0, cut: bool = False, n_out: int = 10) -> Said:
    score = 1.0 if right else score
    return Said(right=right, score=score, cut=cut, n_out=n_out, seconds=0.5)


def livebench_answer(id_: str, library: Said, without: Said) -> Answer:
    return Answer(id=id_, task="zebra_puzzle", library=library, without=without)


def livebench_settings(**changes: Any) -> RunSettings:
    fields: dict[str, Any] = {
        "engine": "embedded",
        "model": "m",
        "library_before": "2024-11-25",
        "n_library": 2,
        "n_test": 3,
        "n_left_out": 0,
        "seed": 1,
        "examples": 2,
        "tokens": 52,
        "questions_sha256": "a" * 64,
        "documents_sha256": {"zebra_puzzle": "b" * 64},
    }
    return RunSettings(**{**fields, **changes})
