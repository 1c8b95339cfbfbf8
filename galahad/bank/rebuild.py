"""Keep a bank true after an upgrade: every program is run again, and every block proved, or
computed anew where it does not hold.

Programs come first, the one verified longest ago before the others. An entry whose program no
longer gives its answer, or whose file
is damaged, is set aside: it leaves the bank with its reason and is kept. One whose program was
stopped by a limit that a busy machine can cause, or verified in a stronger sandbox than this host
has, stays as it is and is named.

Then the blocks of the entries that are left. One that is missing, or holds something else than its
entry says, is computed from the entry's text; all are then proved or rebuilt by
`taliesin.prove.rebuild`, always for the model they are of. Each step leaves the bank whole, so a
run that is killed is taken up by the next. Deliberately does not know: how a block is proved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from galahad import sandbox
from galahad.answerer.answerer import SavedBlock
from galahad.bank import bank
from galahad.bank.bank import Bank
from galahad.bank.entry import Entry, Need, Verify, contradictions
from galahad.errors import BankError, SandboxUnavailable
from taliesin.errors import EngineUnavailable, StoreFull, StoreLocked, StoreMissing, ToolkitError
from taliesin.host import locks
from taliesin.models import resolve as models
from taliesin.prove import rebuild as blocks

if TYPE_CHECKING:
    from galahad.answerer.answerer import BlockAnswerer

Status = Literal["verified", "set-aside", "left", "failed"]

_STRENGTH: tuple[sandbox.Level, ...] = ("weak", "kernel", "full")
# What a program that is right can meet on a machine that is busy, or short of memory.
_PASSING: frozenset[str] = frozenset(("timeout", "crash"))
# Of the time limit; the blocks have the rest, so that neither keeps the other waiting every night.
_PROGRAMS_SHARE = 0.5


class EntryOutcome(NamedTuple):
    """What became of one entry: *verified* again; *set-aside*, it is in quarantine; *left* as it
    was, because its program could not be judged here; *failed*, its file cannot be read. `reason`
    says why it is not simply verified."""

    id: str
    status: Status
    reason: str
    seconds: float


@dataclass(frozen=True)
class BankRebuildReport:
    """`n_waiting` entries were not reached before their share of the time was up."""

    entries: list[EntryOutcome]
    n_waiting: int
    blocks: blocks.RebuildReport
    seconds: float

    def count(self, status: Status) -> int:
        return sum(outcome.status == status for outcome in self.entries)

    @property
    def sound(self) -> bool:
        """Whether nothing was set aside and nothing failed."""
        return not (self.count("set-aside") or self.count("failed")) and self.blocks.sound

    @property
    def complete(self) -> bool:
        """Whether everything was reached, and nothing had to be left."""
        return not (self.n_waiting or self.count("left")) and self.blocks.complete

    def as_dict(self) -> dict[str, Any]:
        return {
            "sound": self.sound,
            "complete": self.complete,
            "n_entries_waiting": self.n_waiting,
            "n_blocks_waiting": self.blocks.n_waiting,
            "seconds": self.seconds,
            "entries": [outcome._asdict() for outcome in self.entries],
            "blocks": [outcome._asdict() for outcome in self.blocks.outcomes],
        }


@dataclass
class Rebuilder:
    """Verifies and rebuilds one bank.

    Args:
        open_answerer: the answerer of a model file, for blocks that are missing.
        model: a catalogue name or a GGUF file, for blocks whose model is not in the catalogue.
        allow_weak: run programs also in a weaker sandbox than the one that verified them, and where
        only resource limits hold them.
    """

    bank: Bank
    open_answerer: Callable[[str], BlockAnswerer]
    model: str | None = None
    allow_weak: bool = False
    verify: Verify | None = None
    _anew: dict[str, str] = field(init=False, default_factory=dict)

    def run(
        self,
        max_seconds: float | None = None,
        on_entry: Callable[[EntryOutcome], None] = lambda _outcome: None,
        on_block: Callable[[blocks.Outcome], None] = lambda _outcome: None,
    ) -> BankRebuildReport:
        """Go through the bank. No program is begun after half of `max_seconds`, and no block after
        all of it.

        Raises:
            StoreLocked: another rebuild is at work on the bank or its library. StoreFull: no space;
            what was there is in place.
            SandboxUnavailable: no program can be started here. ModelError: `model` is nothing.
        """
        if self.model is not None:
            models.resolve(self.model)
        started = time.monotonic()
        self._anew.clear()
        with self._alone():
            outcomes, n_waiting = self._programs(max_seconds, on_entry)
            rest = (
                None
                if max_seconds is None
                else max(0.0, max_seconds - (time.monotonic() - started))
            )
            report = self._blocks(rest, on_block)
        return BankRebuildReport(outcomes, n_waiting, report, time.monotonic() - started)

    def _alone(self) -> AbstractContextManager[None]:
        return locks.held(
            self.bank.path / bank.REBUILD_LOCK,
            busy="another rebuild is at work on this bank",
            hint="wait until it is done",
        )

    # -- programs ----------------------------------------------------------------------------------

    def _programs(
        self, max_seconds: float | None, on_entry: Callable[[EntryOutcome], None]
    ) -> tuple[list[EntryOutcome], int]:
        started = time.monotonic()
        queue = sorted(self.bank.ids(), key=lambda id_: (self._verified_at(id_), id_))
        outcomes = []
        while queue:
            if (
                max_seconds is not None
                and time.monotonic() - started >= _PROGRAMS_SHARE * max_seconds
            ):
                break
            outcome = self._treat(queue.pop(0))
            if outcome is not None:
                outcomes.append(outcome)
                on_entry(outcome)
        return outcomes, len(queue)

    def _verified_at(self, id_: str) -> str:
        """Empty, so first, for an entry that cannot be read."""
        try:
            return self.bank.get(id_).verification.at
        except ToolkitError:
            return ""

    def _treat(self, id_: str) -> EntryOutcome | None:
        """None if the entry was removed or changed meanwhile."""
        started = time.monotonic()
        entry: Entry | None = None
        try:
            try:
                entry = self.bank.get(id_)
                status, reason = self._judge(entry, id_)
            except BankError as error:
                status, reason = "set-aside", error.message
            if status == "set-aside":
                target = self.bank.set_aside(id_, entry, reason)
                if target is None:
                    return None
                reason = f"{reason} (now {target.relative_to(self.bank.path)})"
        except (StoreFull, StoreLocked, SandboxUnavailable):
            raise
        except ToolkitError as error:
            status, reason = "failed", error.message
        return EntryOutcome(id_, status, reason, time.monotonic() - started)

    def _judge(self, entry: Entry, id_: str) -> tuple[Status, str]:
        for trouble in contradictions(entry, id_):
            return "set-aside", trouble.detail
        if weaker := self._weaker(entry):
            return "left", weaker
        verify = self.verify or partial(sandbox.verify, allow_weak=self.allow_weak)
        verdict = verify(entry.program, entry.answer)
        if verdict.verdict == "verified":
            self.bank.attest(entry, verdict)
            return "verified", ""
        said = f"{verdict.verdict}, {verdict.cause}: {verdict.detail}"
        return ("left" if verdict.cause in _PASSING else "set-aside"), said

    def _weaker(self, entry: Entry) -> str:
        """Why the program is not run here; empty if it may be."""
        if self.allow_weak:
            return ""
        here, then = sandbox.probe().level, entry.verification.level
        if here == "weak" or _STRENGTH.index(here) < (
            _STRENGTH.index(then) if then in _STRENGTH else 0
        ):
            return (
                f"verified in a {then} sandbox, this host has a {here} one; --allow-weak runs "
                f"the program all the same"
            )
        return ""

    # -- blocks ------------------------------------------------------------------------------------

    def _blocks(
        self, max_seconds: float | None, on_block: Callable[[blocks.Outcome], None]
    ) -> blocks.RebuildReport:
        started = time.monotonic()
        present: list[str] = []
        absent: dict[str, list[tuple[Entry, str, str]]] = {}
        for entry in self._sound_entries():
            for sha256, block in entry.blocks.items():
                why = self._why_absent(entry, block)
                if why:
                    absent.setdefault(sha256, []).append((entry, block.name, why))
                else:
                    present.append(block.name)
        outcomes: list[blocks.Outcome] = []

        def done(outcome: blocks.Outcome) -> None:
            outcomes.append(outcome)
            on_block(outcome)

        n_waiting = 0
        for sha256, missing in absent.items():
            n_waiting += self._compute(sha256, missing, present, done, started, max_seconds)
        rest = None if max_seconds is None else max(0.0, max_seconds - (time.monotonic() - started))
        proved = blocks.Rebuilder(self.bank.library, self.model, move=False).run(
            present, rest, lambda outcome: done(self._follow(outcome))
        )
        return blocks.RebuildReport(
            outcomes, n_waiting + proved.n_waiting, time.monotonic() - started
        )

    def _sound_entries(self) -> Iterator[Entry]:
        for id_ in self.bank.ids():
            try:
                yield self.bank.get(id_)
            except ToolkitError:
                continue  # told by its own outcome, or not reached

    def _why_absent(self, entry: Entry, block: SavedBlock) -> str:
        """Why the library does not have the block that the entry names; empty if it does, or has a
        new generation of it.
        """
        try:
            with self.bank.library.open(block.name) as opened:
                if opened.header.text != entry.document():
                    return "it did not hold what the entry says"
                if block.id not in (opened.block_id, opened.header.extra.get(blocks.REPLACES)):
                    return "it was not the block that the entry names"
        except StoreMissing:
            return "it was missing"
        except ToolkitError as error:
            return error.message
        return ""

    def _compute(
        self,
        sha256: str,
        missing: list[tuple[Entry, str, str]],
        present: list[str],
        done: Callable[[blocks.Outcome], None],
        started: float,
        max_seconds: float | None,
    ) -> int:
        """Compute blocks of one model from their entries; how many were not reached. Those computed
        join `present`, to be proved.
        """
        path = models.with_sha256(sha256, self.model)
        if path is None:
            why = f"its model (SHA-256 {sha256[:12]}) is not here; --model names its file"
            for _, name, reason in missing:
                done(blocks.Outcome((name,), "", "", "left", f"{reason}; {why}", 0, 0.0))
            return 0
        answerer: BlockAnswerer | None = None
        waiting = list(missing)
        try:
            while waiting and (max_seconds is None or time.monotonic() - started < max_seconds):
                entry, name, reason = waiting.pop(0)
                answerer = answerer or self.open_answerer(str(path))
                try:
                    unknown = Need(solved="not-measured", by="nobody")
                    self.bank.add(entry, answerer, entry.need.get(sha256, unknown))
                except (StoreFull, StoreLocked, EngineUnavailable):
                    raise
                except ToolkitError as error:
                    done(
                        blocks.Outcome(
                            (name,), "", "", "failed", f"{reason}; {error.message}", 0, 0.0
                        )
                    )
                else:
                    self._anew[name] = reason
                    present.append(name)
        finally:
            if answerer is not None:
                answerer.close()
        return len(waiting)

    def _follow(self, outcome: blocks.Outcome) -> blocks.Outcome:
        """Have the entries name the block that was proved, and say of one that was computed here
        that it was.
        """
        for name in outcome.names:
            if outcome.status in ("verified", "rebuilt"):
                self._name_block(name, outcome.id)
            if outcome.status == "verified" and name in self._anew:
                outcome = outcome._replace(status="rebuilt", reason=self._anew[name])
        return outcome

    def _name_block(self, name: str, block_id: str) -> None:
        id_ = name.rpartition("@")[0]
        if id_ not in self.bank.ids():
            return
        entry = self.bank.get(id_)
        for sha256, block in entry.blocks.items():
            if block.name == name and block.id != block_id:
                file_bytes = self.bank.library.info(name).file_bytes
                named = msgspec.structs.replace(block, id=block_id, file_bytes=file_bytes)
                self.bank.update(entry, blocks={**entry.blocks, sha256: named})
