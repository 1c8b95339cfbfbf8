"""Keep a library usable after an upgrade: re-prove every block, and compute anew those that this
engine would not have computed.

For each block, the one proved longest ago first: the recipe that this engine has now is compared
with the block's, and where they agree the block is grafted and its certificate re-run. Where they
differ, or the certificate or the payload does not hold, the block's token ids are prefilled again
into a *new generation*. It is written to the library's `tmp/`, read back from there, grafted into a
new context behind a decoy prompt and must give every logits vector of its own fresh prefill; only
then do the names move to it, each by one rename, and only then is the old generation removed. A run
that is killed leaves the old generation or the new one under every name, and the next run takes up
whatever lies between.

Deliberately does not know: how two recipes differ (`recipe`), and where a text came from:
without its token ids there is nothing to rebuild.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from taliesin.engine import certificate, prompt
from taliesin.engine import recipe as recipes
from taliesin.engine.backend import Grafted
from taliesin.engine.embedded import SETTINGS, Engine, InContext
from taliesin.engine.llama import Settings
from taliesin.errors import (
    CertificateMismatch,
    DecodeError,
    EngineUnavailable,
    FormatError,
    ModelError,
    RecipeMismatch,
    StoreDamaged,
    StoreFull,
    StoreLocked,
    StoreMissing,
    ToolkitError,
)
from taliesin.host import clock, locks
from taliesin.models import resolve as models
from taliesin.store.blockfile import BlockFile
from taliesin.store.header import BlockHeader
from taliesin.store.library import REBUILD_LOCK, Library

Status = Literal["verified", "rebuilt", "stale", "left", "failed", "other-engine"]
Verdict = Literal["exact", "inexact", "unusable", "unchecked"]

_DECOY_TOKENS = 64
REPLACES = "replaces"
"""Key of a rebuilt block's meta object: the id of the block that it takes the place of."""


class Outcome(NamedTuple):
    """What became of one block.

    status: *verified* as it is; *rebuilt* and proved; *stale*, to be rebuilt (dry run); *left* as
    it was, because what is needed for it is not here; *failed*, and the old generation is still in
    place; of an *other-engine* (llama-server), and not looked at.
    reason: why it is not simply verified.
    id: of the block that the names lead to now.
    """

    names: tuple[str, ...]
    old_id: str
    id: str
    status: Status
    reason: str
    n_tokens: int
    seconds: float


class Proof(NamedTuple):
    """What a block that came from elsewhere is worth here, and in words.

    *exact*: same recipe, and its certificate was re-run here and held; *inexact*: it can be grafted
    with --inexact; *unusable*: it cannot; *unchecked*: its model or the engine is not here.
    """

    name: str
    verdict: Verdict
    statement: str


@dataclass(frozen=True)
class RebuildReport:
    """Outcomes in the order of the work. `n_waiting` blocks were not reached before the time was
    up.
    """

    outcomes: list[Outcome]
    n_waiting: int
    seconds: float

    def count(self, status: Status) -> int:
        return Counter(outcome.status for outcome in self.outcomes)[status]

    @property
    def sound(self) -> bool:
        """Whether nothing failed."""
        return not self.count("failed")

    @property
    def complete(self) -> bool:
        """Whether every block was reached, and none had to be left or was only looked at."""
        return not (self.n_waiting or self.count("left") or self.count("stale"))

    def as_dict(self) -> dict[str, Any]:
        return {
            "sound": self.sound,
            "complete": self.complete,
            "n_waiting": self.n_waiting,
            "seconds": self.seconds,
            "blocks": [outcome._asdict() for outcome in self.outcomes],
        }


class _Left(Exception):
    """The block stays as it is, for the reason given."""

    status: Status = "left"


class _OtherEngine(_Left):
    status: Status = "other-engine"


@dataclass
class _Engines:
    """The engine that a block shall have now; one model is loaded at a time. The fields are the
    `Rebuilder`'s.
    """

    model: str | None
    move: bool
    threads: int | None
    ubatch: int | None
    gpu_layers: int | None
    _engine: Engine | None = field(init=False, default=None)

    def of(self, block: BlockFile) -> tuple[Engine, Settings, str]:
        """The engine and the settings that the block shall have now, and why its model is another
        one if it is.

        Raises:
            _Left: it is not a block of the embedded engine, or what it needs is not here.
        """
        recipe = block.header.recipe
        if recipe.get("engine") != "embedded":
            raise _OtherEngine(
                f"a block of engine {recipe.get('engine')!r}, which this command does not compute"
            )
        gpu_layers = recipe.get("n_gpu_layers", 0) if self.gpu_layers is None else self.gpu_layers
        engine, moved = self._load(str(recipe.get("model_sha256")), gpu_layers)
        if self.gpu_layers is None and recipe.get("devices") and not engine.model.devices:
            raise _Left(
                f"computed on {recipe['devices']}, which is not here; --gpu-layers 0 moves it "
                "to the CPU"
            )
        if moved:
            _require_same_text(engine, block)
        # Fields that an older version did not record, or recorded otherwise, get today's default.
        ours = Settings()
        kept = {n: recipe[n] for n in SETTINGS if type(recipe.get(n)) is type(getattr(ours, n))}
        wanted = {"n_threads": self.threads, "n_ubatch": self.ubatch}
        changes = {n: value for n, value in wanted.items() if value is not None}
        return engine, replace(ours, n_ctx=256, **{**kept, **changes}).checked(), moved

    def _load(self, sha256: str, gpu_layers: int) -> tuple[Engine, str]:
        held = self._engine
        if held is not None and (held.model_sha256, held.gpu_layers) == (sha256, gpu_layers):
            return held, ""
        path, moved = self._find(sha256)
        if held is None or (held.model.path, held.gpu_layers) != (path, gpu_layers):
            self.close()
            held = self._engine = Engine(str(path), gpu_layers=gpu_layers)
        return held, moved

    def _find(self, sha256: str) -> tuple[Path, str]:
        """The file of the model with that hash, or of the one to move to, and then why."""
        found = models.with_sha256(sha256, self.model)
        if found is not None:
            return found, ""
        if self.model is None or not self.move:
            move = ", or one to move it to" if self.move else ""
            raise _Left(
                f"its model (SHA-256 {sha256[:12]}) is not here; --model names its file{move}"
            )
        given = models.resolve(self.model)
        return given, f"another model: stored {sha256[:12]}, now {models.model_sha256(given)[:12]}"

    def close(self) -> None:
        """Free the model."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


@dataclass
class Rebuilder:
    """Re-proves and rebuilds blocks of one library, with one model loaded at a time.

    Args:
        model: a catalogue name or a GGUF file. Blocks of this model use it, and so do blocks whose
            own model is nowhere here, if it gives their ids the same text. Blocks whose own model
            is in the catalogue and here keep that.
        move: whether blocks may go to another model than their own.
        threads, ubatch, gpu_layers: what the blocks shall be computed with from now on; None keeps
        what each says.
        thorough: prove new generations also by `verify` in processes of its own, once.
        dry_run: change nothing.
    """

    library: Library
    model: str | None = None
    move: bool = True
    threads: int | None = None
    ubatch: int | None = None
    gpu_layers: int | None = None
    thorough: bool = False
    dry_run: bool = False
    _engines: _Engines = field(init=False)

    def __post_init__(self) -> None:
        self._engines = _Engines(self.model, self.move, self.threads, self.ubatch, self.gpu_layers)

    def run(
        self,
        only: Collection[str] | None = None,
        max_seconds: float | None = None,
        on_block: Callable[[Outcome], None] = lambda _outcome: None,
    ) -> RebuildReport:
        """Go through all blocks that have a name, or those that the names or ids in `only` lead to.

        No block is begun after `max_seconds`; another run goes on there.

        Raises:
            StoreLocked: another rebuild is at work on the library. StoreMissing: one of `only` is
            not there.
            StoreFull: no space for a new generation, or a read-only place; the old one is there.
            ModelError: `model` is nothing.
        """
        if self.model is not None:
            models.resolve(self.model)
        started = time.monotonic()
        outcomes: list[Outcome] = []
        try:
            with self._alone():
                for line in self.library.list() if only is None else ():
                    if line.name is not None and not line.id:
                        outcomes.append(
                            Outcome((line.name,), "", "", "failed", str(line.problem), 0, 0.0)
                        )
                        on_block(outcomes[-1])
                successors = {} if self.dry_run else _take_up(self.library)
                queue = _queue(self.library, only)
                while queue:
                    if max_seconds is not None and time.monotonic() - started >= max_seconds:
                        break
                    outcome = self._treat(queue.pop(0), successors)
                    if outcome is not None:
                        outcomes.append(outcome)
                        on_block(outcome)
        finally:
            self.close()
        return RebuildReport(outcomes, len(queue), time.monotonic() - started)

    def prove(self, name: str) -> Proof:
        """What the block is worth here as it is; its payload is hashed and its certificate re-run.
        Changes nothing.

        Raises:
            StoreMissing, StoreDamaged, FormatError: as `Library.open`, and for a payload that is
            not what was written.
        """
        with self.library.open(name) as block:
            try:
                engine, settings, moved = self._engines.of(block)
            except (_Left, EngineUnavailable, ModelError) as error:
                why = str(error) if isinstance(error, _Left) else getattr(error, "message", "")
                return Proof(name, "unchecked", f"not checked here: {why}")
            if moved:
                return Proof(name, "unchecked", "not checked here: its model is not here")
            recipe, n_tokens = block.header.recipe, len(block.header.tokens)
            differing = recipes.identity_differences(
                recipe, engine.recipe(engine.context(settings, n_tokens))
            )
            if differing:
                fits = not any(d.field in recipes.UNBRIDGEABLE for d in differing)
                what = "functional, not exact here" if fits else "not usable here"
                return Proof(
                    name,
                    "inexact" if fits else "unusable",
                    f"{what}: {'; '.join(map(str, differing))}",
                )
            if block.header.certificate is None:
                return Proof(
                    name, "unchecked", "same recipe, but the block has no certificate to re-check"
                )
            try:
                certify(engine, block)
            except CertificateMismatch as error:
                statement = (
                    "functional, not exact here: same recipe, but the certificate does "
                    f"not hold ({error.got})"
                )
                return Proof(name, "inexact", statement)
        self._record(self.library.info(name).id)
        return Proof(name, "exact", "exact here: same recipe, certificate re-checked")

    def close(self) -> None:
        """Free the model."""
        self._engines.close()

    def _alone(self) -> AbstractContextManager[None]:
        return locks.held(
            self.library.path / REBUILD_LOCK,
            busy="another rebuild is at work on this library",
            hint="wait until it is done",
        )

    # -- one block ---------------------------------------------------------------------------------

    def _treat(self, block_id: str, successors: dict[str, list[str]]) -> Outcome | None:
        """None if no name leads to the block any more."""
        started = time.monotonic()
        names = tuple(
            line.name
            for line in self.library.list()
            if line.id == block_id and line.name is not None
        )
        if not names:
            return None
        n_tokens, new_id, reason = 0, block_id, ""
        status: Status
        try:
            with self.library.open(block_id) as block:
                n_tokens = len(block.header.tokens)
                engine, settings, moved = self._engines.of(block)
                if not moved and not (reason := self._why_not(engine, block, settings)):
                    status = "verified"
                    self._record(block_id)
                elif self.dry_run:
                    status, reason = "stale", reason or moved
                else:
                    reason = reason or moved
                    adopted = self._adopt(engine, block_id, settings, successors.get(block_id, []))
                    new_id = adopted or self._renew(engine, block, block_id, settings, bool(moved))
                    status = "rebuilt"
                    self._record(new_id)
        except _Left as left:
            status, reason = left.status, str(left)
        except (StoreFull, StoreLocked, EngineUnavailable):
            raise
        except ToolkitError as error:
            what = error.message + (f" ({error.got})" if error.got is not None else "")
            status, reason = "failed", f"{reason}; {what}" if reason else what
        return Outcome(
            names, block_id, new_id, status, reason, n_tokens, time.monotonic() - started
        )

    def _record(self, block_id: str) -> None:
        if not self.dry_run:
            self.library.index.set_certified(block_id, time.time())

    def _why_not(self, engine: Engine, block: BlockFile, settings: Settings) -> str:
        """Why the block cannot stay; empty if it was grafted and its certificate held."""
        wanted = recipes.identity_differences(
            block.header.recipe, engine.recipe(engine.context(settings, len(block.header.tokens)))
        )
        if wanted:
            return "another recipe: " + "; ".join(map(str, wanted))
        if block.header.certificate is None:
            return "it has no certificate"
        try:
            engine.graft(block, policy="always", certify=True, n_extra=certificate.POSITIONS)
        except CertificateMismatch as error:
            return f"the certificate does not hold ({error.got})"
        except (StoreDamaged, FormatError, RecipeMismatch, DecodeError) as error:
            return error.message
        return ""

    def _adopt(
        self, engine: Engine, block_id: str, settings: Settings, successors: list[str]
    ) -> str | None:
        """The id of a new generation that an earlier run made and could not name everywhere, if it
        holds here.
        """
        for new_id in successors:
            try:
                with self.library.open(new_id) as block:
                    if self._why_not(engine, block, settings):
                        continue
            except StoreMissing:
                continue
            self.library.lead(block_id, new_id)
            return new_id
        return None

    def _renew(
        self, engine: Engine, block: BlockFile, block_id: str, settings: Settings, moved: bool
    ) -> str:
        """Compute the block anew, prove it, and put it in its place; its id."""
        old = block.header
        ids = [*old.tokens.tolist(), *old.tail.tolist()]
        # The promise stays, unless the ubatch grew beyond the text.
        aligned = old.equals == "one-shot" and len(ids) >= settings.n_ubatch
        computed = engine.compute(ids, align="aligned" if aligned else "whole", settings=settings)
        header = replace(
            old,
            created=clock.now(),
            recipe=computed.recipe,
            equals=computed.equals,
            tokens=computed.tokens,
            tail=computed.tail,
            certificate=computed.certificate,
            stop=tuple(sorted(engine.model.end_of_generation)) if moved else old.stop,
            extra=MappingProxyType({**old.extra, REPLACES: block_id}),
        )

        def prove(written: BlockFile) -> None:
            certify(engine, written)
            if self.thorough:
                _require_exact(written, engine)

        return self.library.supersede(block_id, header, computed.state, prove)[0].id


def _queue(library: Library, only: Collection[str] | None) -> list[str]:
    """Ids of named blocks, the one whose proof is oldest first; a block was proved when it was
    made.
    """
    certified = library.index.certified()
    proved: dict[str, float] = {}
    for line in library.list():
        if line.name is not None and line.id:
            made = 0.0 if line.problem else _unix(line.created)
            proved[line.id] = max(certified.get(line.id, 0.0), made)
    if only is not None:
        proved = {
            block_id: proved.get(block_id, 0.0) for block_id in (library.info(n).id for n in only)
        }
    return sorted(proved, key=lambda block_id: (proved[block_id], block_id))


def _take_up(library: Library) -> dict[str, list[str]]:
    """What a killed run left between two steps: old generations that no name leads to any more
    are removed, and new ones that no name, or not every name, leads to yet come back as old id
    -> new ids."""
    with library.locked():
        library.remove_leftovers()
    lines = library.list()
    named = {line.id for line in lines if line.name is not None}
    successors: dict[str, list[str]] = {}
    for block_id in sorted({line.id for line in lines if line.id and not line.problem}):
        try:
            with library.open(block_id) as block:
                old = block.header.extra.get(REPLACES)
        except ToolkitError:
            continue
        if isinstance(old, str):
            successors.setdefault(old, []).append(block_id)
    unnamed = {line.id for line in lines if line.name is None}
    for old, news in successors.items():
        if old in unnamed and not named.isdisjoint(news):
            library.remove(old)
    return successors


def certify(engine: Engine, block: BlockFile) -> Grafted[InContext]:
    """Graft a block into a new context behind a decoy prompt and re-run its certificate.

    A new context and a decoy, because a graft that does nothing must not find what an earlier
    prefill of the same ids left.

    Raises:
        CertificateMismatch, RecipeMismatch, StoreDamaged, FormatError: as `Engine.graft`.
    """
    engine.drop_context()
    recipe = block.header.recipe
    kept = {n: recipe[n] for n in SETTINGS if n in recipe}
    n_tokens = len(block.header.tokens) + max(certificate.POSITIONS, _DECOY_TOKENS)
    context = engine.context(replace(Settings(), n_ctx=256, **kept), n_tokens)
    context.decode(
        [1 + i % (engine.model.n_vocab - 1) for i in range(_DECOY_TOKENS)], 0, logits=False
    )
    return engine.graft(block, policy="always", certify=True, n_extra=certificate.POSITIONS)


def _require_exact(block: BlockFile, engine: Engine) -> None:
    from taliesin.prove import verify

    report = verify.verify(block, engine.model.path, gpu_layers=engine.gpu_layers, trials=1)
    if not report.exact:
        first = [
            f"{row.query_tokens} tokens"
            for row in report.rows
            if row.equal_block_then_query < row.n_vectors
        ]
        raise CertificateMismatch(
            "the new generation differs from a fresh recompute",
            got=f"after queries of {', '.join(first)}",
        )


def _require_same_text(engine: Engine, block: BlockFile) -> None:
    """The ids of the block must mean to this model what they meant to the block's own.

    Raises:
        ModelError: they do not, or the block was saved from bare ids, so that nobody can tell.
    """
    header: BlockHeader = block.header
    kind = header.extra.get("frame")
    ids = [*header.tokens.tolist(), *header.tail.tolist()]
    problem = ""
    if kind not in ("chat", "raw"):
        problem = "the block does not say how its text became ids"
    elif max(ids) >= engine.model.n_vocab:
        problem = f"id {max(ids)} is beyond its vocabulary of {engine.model.n_vocab}"
    else:
        shape = prompt.frame(engine.model, raw=kind == "raw")
        end = len(ids) - len(shape.between)
        body = ids[len(shape.before) : end]
        framed = (tuple(ids[: len(shape.before)]), tuple(ids[end:]), header.after_query)
        if framed != (shape.before, shape.between, shape.after):
            problem = "another chat template"
        elif (
            engine.model.text(body) != header.text
            and engine.model.tokenize(header.text, special=False) != body
        ):
            problem = "its tokens are other pieces of text"
    if problem:
        raise ModelError(
            "the block's ids cannot be moved to this model",
            got=problem,
            where=engine.model.path,
            hint="save the text again under this model",
        )


def _unix(created: str) -> float:
    """Unix time of a block's `created`, which the format checks only by its digits."""
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:
        return 0.0
