"""Random damages of every kind of file: refused with one error, or without effect; never wrong,
never a traceback, and the next use in the same process exact.

    python benchmarks/campaigns/damage.py --n 10000 --seed 1 --out damage.jsonl
    python benchmarks/campaigns/damage.py --kinds block --case 17      # one case again, alone

A case damages a sound file in place (a bit, a byte, a run of zeros, a cut, an insertion, a
duplication, a swap of two runs; half of the time with the old modification time), uses it, puts the
sound bytes back and uses it again. Two things are not counted as wrong, because no reader could
know: a run log of which less is left (cut at its end, or with a last record that is no JSON: an
earlier state of the run, as after a kill), and bytes inside the rows or the token ids of a
llama-server's slot file, a foreign format without a checksum (`unprotected`).
"""

from __future__ import annotations

import functools
import logging
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from campaign import Case, Kinds, Outcome, main

from taliesin.errors import ToolkitError

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"


# -- damage ----------------------------------------------------------------------------------------


def damaged(rng: random.Random, raw: bytes) -> tuple[str, bytes]:
    """What was done, and other bytes than `raw`."""
    while True:
        how = rng.choice(("bit", "byte", "zeros", "cut", "insert", "duplicate", "swap"))
        at = rng.randrange(len(raw))
        size = min(rng.choice((1, 4, 16, 64, 512, 4096)), len(raw) - at)
        run = raw[at : at + size]
        match how:
            case "bit":
                new = raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]
            case "byte":
                new = raw[:at] + rng.randbytes(1) + raw[at + 1 :]
            case "zeros":
                new = raw[:at] + bytes(size) + raw[at + size :]
            case "cut":
                new = raw[:at]
            case "insert":
                new = raw[:at] + rng.randbytes(size) + raw[at:]
            case "duplicate":
                new = raw[:at] + run + raw[at:]
            case _:
                to = rng.randrange(len(raw) - size + 1)
                low, high = sorted((at, to))
                new = (
                    raw[:low]
                    + raw[high : high + size]
                    + raw[low + size : high]
                    + raw[low : low + size]
                    + raw[high + size :]
                    if high - low >= size
                    else raw
                )
        if new != raw:
            return f"{how} at {at} of {len(raw)}", new


def overwrite(path: Path, raw: bytes, times: tuple[int, int] | None) -> None:
    """Put bytes in place, in the same inode, with these times if given."""
    mode = path.stat().st_mode
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(raw)
        file.truncate()
    path.chmod(mode)
    if times is not None:
        os.utime(path, ns=times)


Allowed = Callable[[Any, Any], Outcome | None]


def cases(
    path: Path, use: Callable[[], Any], allowed: Allowed = lambda _sound, _found: None
) -> Case:
    """Cases that damage the file at `path`.

    use: what the file says, or an error of ours; allowed: the outcome of a value that is not the
    sound one, if that is not wrong.
    """
    sound, raw = use(), path.read_bytes()
    status = path.stat()
    times = (status.st_atime_ns, status.st_mtime_ns)

    def case(rng: random.Random) -> tuple[Outcome, str]:
        what, new = damaged(rng, raw)
        old_times = rng.random() < 0.5
        overwrite(path, new, times if old_times else None)
        what += ", old times" if old_times else ""
        outcome: Outcome = "held"
        try:
            found = use()
            if found == sound:
                said = "no effect"
            else:
                outcome = allowed(sound, found) or "wrong"
                said = "another value"
        except ToolkitError as error:
            said = type(error).__name__
        finally:
            overwrite(path, raw, times)
        if use() != sound:
            return "lost", f"{what}: {said}; the next use differs"
        return outcome, f"{what}: {said}"

    return case


# -- kinds of files --------------------------------------------------------------------------------


def header() -> Any:
    from taliesin.store.header import BlockHeader

    return BlockHeader(
        title="a title",
        created="2026-01-31T12:00:00Z",
        recipe={"n_ubatch": 512},
        equals="block-then-query",
        tokens=np.arange(200, dtype=np.int32),
        tail=np.arange(3, dtype=np.int32),
        text="a text of the block",
    )


def payload(n_bytes: int = 9000) -> bytes:
    return np.random.default_rng(1).bytes(n_bytes)


@contextmanager
def block(folder: Path) -> Iterator[Case]:
    """A block of a library, opened by its name, hashed as `--verify once` says."""
    from taliesin.store.library import Library

    with Library(folder / "library") as library:
        info = library.put("a", header(), payload())

        def use() -> Any:
            with library.open("a") as opened:
                target = bytearray(opened.payload_bytes)
                verify = library.needs_verification(opened, "once")
                opened.read_into([(0, memoryview(target))], verify=verify)
                if verify:
                    library.record_verified(opened)
                says = opened.header
                return bytes(target), says.tokens.tobytes(), says.tail.tobytes(), says.text

        yield cases(library.block_path(info.id), use)


@contextmanager
def bundle(folder: Path) -> Iterator[Case]:
    """A bundle, imported into an empty library; what is refused leaves that empty."""
    from taliesin.store.library import Library

    with Library(folder / "from") as library:
        library.put("a", header(), payload())
        library.put("b", header(), payload(5000))
        library.export(["a", "b"], folder / "bundle.tar")
    with Library(folder / "to") as target:

        def use() -> Any:
            try:
                target.import_(folder / "bundle.tar")
            except ToolkitError:
                if target.list():
                    raise AssertionError("a refused bundle left blocks") from None
                raise
            lines = target.list()
            found = []
            for line in lines:
                with target.open(str(line.name)) as opened:
                    opened.verify()
                found.append((line.name, line.id))
            for line in lines:
                target.remove(str(line.name))
            return found

        yield cases(folder / "bundle.tar", use)


@contextmanager
def slot_file(folder: Path) -> Iterator[Case]:
    """A slot file of a llama-server. Its rows and token ids have no checksum."""
    from taliesin.state import slotfile

    path = folder / "slot.bin"
    path.write_bytes((GOLDEN / "slot_v3.bin").read_bytes())

    def use() -> Any:
        found = slotfile.read(path)
        shape = [
            (p.n_cells, p.positions.tobytes(), p.v_trans, p.offset, p.end) for p in found.parts
        ]
        return bytes(found.data), (len(found.tokens), found.packed, found.n_stream, shape)

    def allowed(sound: Any, found: Any) -> Outcome | None:
        return "unprotected" if len(sound[0]) == len(found[0]) else None

    yield cases(path, use, allowed)


@contextmanager
def piece(folder: Path) -> Iterator[Case]:
    """A piece of the prefix cache: a miss, or its payload."""
    from taliesin.store import piecefile
    from taliesin.store.pieces import PieceStore

    recipe, ids = "ab" * 32, list(range(64))
    name = piecefile.following(recipe, np.asarray(ids, np.int32))
    with PieceStore(folder / "pieces", recipe, budget_bytes=1 << 30) as store:
        store.put(name, "", ids, payload())
        store.flush()
        path = store.files.path(name)
        sound = path.read_bytes()

        def use() -> Any:
            found = store.read(name)
            if found is None:
                if not path.exists():  # a damaged piece is removed: what puts it back finds a file
                    path.write_bytes(sound)
                raise ToolkitError("a miss")
            return found

        yield cases(path, use)


@contextmanager
def run_log(folder: Path) -> Iterator[Case]:
    """The log of a run. A cut at its end leaves an earlier state of the run."""
    sys.path.insert(0, str(ROOT))
    from galahad.solve import log
    from galahad.solve.writer import RunLog
    from tests.galahad import doubles

    with RunLog.create(folder / "run", doubles.run_header()) as written:
        written.session(doubles.run_session())
        for number in range(6):
            attempt = doubles.run_attempt(number)
            written.attempt(attempt, doubles.run_transcript(attempt, f"text {number}"))

    def use() -> Any:
        run = log.read(folder / "run")
        return run.header, run.sessions, run.attempts

    def allowed(sound: Any, found: Any) -> Outcome | None:
        earlier = (
            found[0] == sound[0]
            and sound[1][: len(found[1])] == found[1]
            and sound[2][: len(found[2])] == found[2]
        )
        return "held" if earlier else None

    yield cases(folder / "run" / log.LOG, use, allowed)


@contextmanager
def bank_entry(folder: Path) -> Iterator[Case]:
    from galahad.bank.bank import Bank
    from galahad.bank.entry import Entry, Need, PersonSource, Verification
    from galahad.measure.canonical import sha256_of
    from galahad.problems.problem import Problem

    problem = Problem.of("sum-7", "What is the sum of the integers from 1 to 37?", 703)
    program = "def solve(last=37):\n    return sum(range(last + 1))\n\nprint(solve())\n"
    entry = Entry(
        id=problem.id,
        problem=problem.problem,
        sha256=problem.sha256,
        answer=703,
        program=program,
        program_sha256=sha256_of(program),
        parametric=True,
        findings=(),
        verification=Verification(
            verdict="verified",
            answer=703,
            level="kernel",
            mechanisms=["seccomp"],
            wall_seconds=0.1,
            at="2026-01-31T12:00:00Z",
        ),
        provenance=PersonSource(file="p.py"),
        need={},
        blocks={},
        created="2026-01-31T12:00:00Z",
    )
    with Bank(folder / "bank", create=True) as bank:
        bank.add(entry, None, Need(solved="failed", by="a campaign"))
        yield cases(folder / "bank" / "entries" / "sum-7.json", lambda: bank.get("sum-7"))


@contextmanager
def lock(folder: Path) -> Iterator[Case]:
    """The lock of a pre-registration, checked against its published hash."""
    from galahad.evidence import prereg
    from galahad.evidence.prereg import inputs

    # The source does not change meanwhile: hashed once.
    inputs.package_sha256 = functools.cache(inputs.package_sha256)
    (folder / "measure.py").write_text("print(1)\n")
    (folder / "plan.yaml").write_text(
        "title: A campaign\nfiles: [measure.py]\ncommands: [[python, measure.py]]\n"
        "outputs: [out.json]\npredictions:\n"
        "- {statement: most, from: out.json, field: n, operator: '>', value: 0.5}\n"
    )
    path, digest = prereg.lock(folder / "plan.yaml")

    def use() -> Any:
        found = prereg.check(path, digest)
        if not found.intact:
            raise ToolkitError("check says no")
        return found

    yield cases(path, use)


@contextmanager
def raw_result(folder: Path) -> Iterator[Case]:
    """A raw result that docs/reproduction.md is made of: the check of the document says no."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import reproduce

    path = folder / "results" / "verify_cpu.json"
    path.parent.mkdir()
    path.write_bytes((ROOT / "benchmarks" / "results" / "verify_cpu.json").read_bytes())
    claims = reproduce.claims()
    document = reproduce.build(reproduce.load(path.parent), claims)

    def use() -> Any:
        if reproduce.build(reproduce.load(path.parent), claims) != document:
            raise ToolkitError("the document and the results disagree")
        return document

    yield cases(path, use)


@contextmanager
def graft(folder: Path) -> Iterator[Case]:
    """A block of the tiny model, grafted and asked: the logits of eight steps."""
    sys.path.insert(0, str(ROOT))
    from taliesin.engine import certificate, llama
    from taliesin.engine.embedded import Engine
    from taliesin.engine.llama import Settings
    from taliesin.engine.save import save_tokens
    from taliesin.store.library import Library
    from tests.conftest import write_model

    model = write_model(folder / "tiny.gguf", 1, 128)
    with (
        Engine(str(model), Settings(n_ubatch=64, n_threads=1)) as engine,
        Library(folder / "library") as library,
    ):
        ids = np.random.default_rng(1).integers(261, 350, 300).tolist()
        saved = save_tokens(engine, library, ids, "a", align="whole")

        def use() -> Any:
            with library.open("a") as opened:
                grafted = engine.graft(opened, library=library)
            vector = grafted.prefill([270, 271, 272])
            token = int(vector.argmax())
            steps = llama.greedy(grafted.place.context, [token], 303, 7)
            return [certificate.digest(v) for v in (vector, *steps)]

        yield cases(library.block_path(saved.info.id), use)


KINDS: Kinds = {
    "block": block,
    "bundle": bundle,
    "slot-file": slot_file,
    "piece": piece,
    "run-log": run_log,
    "bank-entry": bank_entry,
    "lock": lock,
    "raw-result": raw_result,
    "graft": graft,
}


if __name__ == "__main__":
    os.fsync = lambda _fd: None  # nobody pulls the plug in this campaign
    logging.getLogger("taliesin").setLevel(logging.ERROR)  # each miss of a piece is a warning
    sys.exit(main("damage", __doc__ or "", KINDS, n=10_000, folder=tempfile.TemporaryDirectory))
