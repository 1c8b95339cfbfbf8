"""The nightly rebuild: what holds is proved, what does not is computed anew, and a kill at any step
loses nothing.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
from msgspec import structs

from taliesin import cli
from taliesin.engine import certificate, graft, llama
from taliesin.engine import recipe as recipes
from taliesin.engine.embedded import Engine
from taliesin.engine.llama import Settings
from taliesin.engine.save import save
from taliesin.errors import CertificateMismatch, ModelError, StoreFull, StoreLocked
from taliesin.host import console
from taliesin.prove import rebuild as rebuilding
from taliesin.prove import worker as verify_worker
from taliesin.prove.rebuild import Outcome, Rebuilder
from taliesin.store.check import check as check_library
from taliesin.store.header import BlockHeader
from taliesin.store.library import Library

pytestmark = pytest.mark.native

SETTINGS = Settings(n_ubatch=32, n_threads=1)
TEXT = "The lamp was lit at dusk and the log was kept until dawn. "
LENGTHS = {"short": 1, "ring": 4, "split": 3}


@pytest.fixture
def model(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model()


def fill(
    library: Library, model: Path, names: tuple[str, ...] = ("short", "ring"), **settings: Any
) -> None:
    with Engine(str(model), settings=replace(SETTINGS, **settings)) as engine:
        for name in names:
            save(engine, library, f"{name}: " + TEXT * LENGTHS[name], name)


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with Library(tmp_path / "library") as library:
        yield library


def from_old_engine(library: Library, model: Path, *names: str) -> None:
    real = llama.build_info
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama, "build_info", lambda: {**real(), "llama_cpp_python": "0.0.1"})
        fill(library, model, names or ("short", "ring"))


def require_usable(library: Library, model: Path, name: str) -> None:
    """The block is grafted with its certificate, as `taliesin graft --certify` does."""
    with Engine(str(model)) as engine, library.open(name) as block:
        assert engine.graft(block, policy="always", certify=True).certified


def by_name(outcomes: list[Outcome]) -> dict[str, Outcome]:
    return {name: outcome for outcome in outcomes for name in outcome.names}


def test_blocks_of_this_engine_are_verified_and_not_touched(library: Library, model: Path) -> None:
    fill(library, model)
    before = [(line.name, line.id) for line in library.list()]
    report = Rebuilder(library, str(model)).run()
    assert [o.status for o in report.outcomes] == ["verified", "verified"]
    assert report.sound
    assert report.complete
    assert [(line.name, line.id) for line in library.list()] == before


def test_after_an_engine_upgrade_blocks_are_computed_anew_from_their_ids(
    library: Library, model: Path
) -> None:
    from_old_engine(library, model)
    with library.open("ring") as block:
        old, old_id = block.header, str(block.block_id)
    report = Rebuilder(library, str(model)).run()
    outcome = by_name(report.outcomes)["ring"]
    assert (outcome.status, outcome.old_id) == ("rebuilt", old_id)
    assert "llama_cpp_python: stored '0.0.1'" in outcome.reason
    with library.open("ring") as block:
        new = block.header
        assert block.block_id == outcome.id != old_id
    assert new.recipe["llama_cpp_python"] != "0.0.1"
    kept = {"tokens", "tail", "equals", "title", "text", "after_query", "stop", "part", "source"}
    for name in kept:
        assert np.array_equal(getattr(new, name), getattr(old, name)), name
    assert new.extra["replaces"] == old_id
    assert not library.block_path(old_id).exists()
    require_usable(library, model, "ring")
    again = Rebuilder(library, str(model)).run()
    assert [o.status for o in again.outcomes] == ["verified", "verified"]


def test_rebuilt_payload_is_the_one_that_saving_gives(
    library: Library, model: Path, tmp_path: Path
) -> None:
    from_old_engine(library, model, "ring")
    Rebuilder(library, str(model)).run()
    with Library(tmp_path / "fresh") as fresh:
        fill(fresh, model, ("ring",))
        with library.open("ring") as ours, fresh.open("ring") as theirs:
            size = ours.payload_bytes
            assert ours.read_at(0, size) == theirs.read_at(0, theirs.payload_bytes)
            assert ours.header.certificate == theirs.header.certificate


@pytest.mark.parametrize("change", [{"threads": 2}, {"ubatch": 64}])
def test_other_settings_move_blocks(library: Library, model: Path, change: dict[str, int]) -> None:
    fill(library, model)
    report = Rebuilder(library, str(model), **change).run()  # type: ignore[arg-type]
    assert [o.status for o in report.outcomes] == ["rebuilt", "rebuilt"]
    require_usable(library, model, "ring")
    with library.open("ring") as block:
        assert block.header.equals == "one-shot"
        assert len(block.header.tokens) % block.header.recipe["n_ubatch"] == 0
    assert [o.status for o in Rebuilder(library, str(model)).run().outcomes] == [
        "verified",
        "verified",
    ]


def test_another_model_of_the_same_vocabulary_takes_blocks_over(
    library: Library, model: Path, tiny_model: Callable[..., Path]
) -> None:
    fill(library, model)
    other = tiny_model(seed=2)
    report = Rebuilder(library, str(other)).run()
    assert [o.status for o in report.outcomes] == ["rebuilt", "rebuilt"]
    assert "another model" in report.outcomes[0].reason
    require_usable(library, other, "ring")


def test_model_under_which_the_ids_are_other_text_is_refused(
    library: Library, model: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Callable[..., Path]
) -> None:
    fill(library, model, ("short",))
    before = library.info("short").id
    monkeypatch.setattr(llama.Model, "text", lambda *_a, **_k: "something else")
    monkeypatch.setattr(
        llama.Model, "tokenize", lambda _self, text, special: [5] if special else [7, 7]
    )
    report = Rebuilder(library, str(tiny_model(seed=2))).run()
    assert report.outcomes[0].status == "failed"
    assert "cannot be moved" in report.outcomes[0].reason
    assert library.info("short").id == before


def test_block_whose_model_is_not_here_is_left(library: Library, model: Path) -> None:
    fill(library, model, ("short",))
    report = Rebuilder(library).run()
    assert report.outcomes[0].status == "left"
    assert "is not here" in report.outcomes[0].reason
    assert report.sound
    assert not report.complete


def test_model_that_is_nothing_is_one_error(library: Library, model: Path) -> None:
    fill(library, model, ("short",))
    with pytest.raises(ModelError):
        Rebuilder(library, "no-such-model").run()


def test_block_of_another_engine_is_left(library: Library, model: Path) -> None:
    header = BlockHeader(
        title="x",
        created="2026-01-31T12:00:00Z",
        recipe={"engine": "llama-server"},
        equals="one-shot",
        tokens=np.arange(4, dtype=np.int32),
        tail=np.arange(0, dtype=np.int32),
    )
    library.put("slot", header, bytes(100))
    report = Rebuilder(library, str(model)).run()
    assert (report.outcomes[0].status, library.info("slot").problem) == ("other-engine", None)
    assert report.complete


def test_damaged_payload_is_computed_anew(library: Library, model: Path) -> None:
    fill(library, model, ("short",))
    path = library.block_path(library.info("short").id)
    raw = bytearray(path.read_bytes())
    raw[-5000] ^= 1
    path.chmod(0o600)
    path.write_bytes(raw)
    report = Rebuilder(library, str(model)).run()
    assert report.outcomes[0].status == "rebuilt"
    assert "damaged" in report.outcomes[0].reason
    require_usable(library, model, "short")


def test_block_without_a_readable_header_fails_and_the_others_go_on(
    library: Library, model: Path
) -> None:
    fill(library, model)
    path = library.block_path(library.info("short").id)
    path.chmod(0o600)
    path.write_bytes(b"nothing")
    found = by_name(Rebuilder(library, str(model)).run().outcomes)
    assert (found["short"].status, found["ring"].status) == ("failed", "verified")


def test_new_generation_that_does_not_prove_is_thrown_away(
    library: Library, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_old_engine(library, model, "short")
    before = library.info("short").id
    take = certificate.take

    def wrong(context: Any, tokens: Any) -> Any:
        right = take(context, tokens)
        return structs.replace(right, sha256=("0" * 64, *right.sha256[1:]))

    monkeypatch.setattr(certificate, "take", wrong)
    report = Rebuilder(library, str(model)).run()
    assert report.outcomes[0].status == "failed"
    assert not report.sound
    assert library.info("short").id == before
    assert [line.id for line in library.list()] == [before]
    assert not list((library.path / "tmp").iterdir())


def test_proof_sees_one_wrong_value(
    library: Library, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(library, model, ("short",))
    with Engine(str(model), settings=SETTINGS) as engine, library.open("short") as block:
        rebuilding.certify(engine, block)
        prepare = graft.prepare

        def flipped(*args: Any, **kwargs: Any) -> graft.Prepared:
            prepared = prepare(*args, **kwargs)
            verify_worker._flip(prepared)
            return prepared

        monkeypatch.setattr(graft, "prepare", flipped)
        with pytest.raises(CertificateMismatch):
            rebuilding.certify(engine, block)


def test_names_that_share_a_block_move_together(library: Library, model: Path) -> None:
    from_old_engine(library, model, "short")
    with library.open("short") as block:
        size = block.payload_bytes
        header, payload = block.header, block.read_at(0, size)
    library.put("twin", header, payload)
    library.pin("twin")
    report = Rebuilder(library, str(model)).run()
    assert report.outcomes[0].names == ("short", "twin")
    lines = library.list()
    assert len({line.id for line in lines}) == 1
    assert [(line.name, line.pinned) for line in lines] == [("short", False), ("twin", True)]


def test_oldest_proof_comes_first_and_the_time_limit_goes_on_there(
    library: Library, model: Path
) -> None:
    fill(library, model, ("short", "ring", "split"))
    ids = {name: library.info(name).id for name in LENGTHS}
    soon = 4e9
    for at, name in enumerate(("split", "short", "ring")):
        library.index.set_certified(ids[name], soon + at)
    order = [o.names[0] for o in Rebuilder(library, str(model)).run().outcomes]
    assert order == ["split", "short", "ring"]
    report = Rebuilder(library, str(model)).run(max_seconds=0)
    assert (report.outcomes, report.n_waiting, report.complete) == ([], 3, False)


def test_interrupted_work_goes_on_where_it_stopped(library: Library, model: Path) -> None:
    from_old_engine(library, model, "short", "ring", "split")

    class Enough(Exception):
        pass

    def once(_outcome: Outcome) -> None:
        raise Enough

    with pytest.raises(Enough):
        Rebuilder(library, str(model)).run(on_block=once)
    statuses = [o.status for o in Rebuilder(library, str(model)).run().outcomes]
    assert sorted(statuses) == ["rebuilt", "rebuilt", "verified"]
    assert statuses[-1] == "verified"


def test_dry_run_says_what_is_stale_and_changes_nothing(library: Library, model: Path) -> None:
    from_old_engine(library, model, "short")
    fill(library, model, ("ring",))
    before = library.list()
    found = by_name(Rebuilder(library, str(model), dry_run=True).run().outcomes)
    assert (found["short"].status, found["ring"].status) == ("stale", "verified")
    assert library.list() == before
    assert not library.index.certified()


def test_damaged_name_is_a_failure(library: Library, model: Path) -> None:
    fill(library, model)
    path = library.refs.path("short")
    os.chmod(path, 0o600)
    Path(os.fsdecode(path)).write_bytes(b"nothing")
    report = Rebuilder(library, str(model)).run()
    found = by_name(report.outcomes)
    assert (found["short"].status, found["ring"].status) == ("failed", "verified")
    assert not report.sound


def test_place_that_cannot_be_written_is_one_error(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with pytest.raises(StoreFull, match="not permitted"):
        Rebuilder(library).run()
    with pytest.raises(StoreFull, match="not permitted"), library.locked():
        pass


def test_two_rebuilds_do_not_meet(library: Library, model: Path) -> None:
    fill(library, model, ("short",))

    def second(_outcome: Outcome) -> None:
        with pytest.raises(StoreLocked, match="another rebuild"):
            Rebuilder(library, str(model)).run()

    Rebuilder(library, str(model)).run(on_block=second)
    assert check_library(library).findings == []


def test_full_disk_keeps_the_old_generation(
    library: Library, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_old_engine(library, model, "short")
    before = library.info("short").id

    def full(*_a: object, **_k: object) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("taliesin.store.blockfile.write", full)
        with pytest.raises(StoreFull):
            Rebuilder(library, str(model)).run()
    assert library.info("short").id == before
    assert Rebuilder(library, str(model)).run().outcomes[0].status == "rebuilt"


def test_name_given_to_another_block_meanwhile_is_left_alone(
    library: Library, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_old_engine(library, model, "short")
    certify = rebuilding.certify

    def meanwhile(engine: Engine, block: Any) -> Any:
        with Library(library.path) as other:
            other.remove("short")
        return certify(engine, block)

    monkeypatch.setattr(rebuilding, "certify", meanwhile)
    report = Rebuilder(library, str(model)).run()
    assert report.outcomes[0].status == "failed"
    assert "no name leads to the block any more" in report.outcomes[0].reason
    assert library.list() == []


def test_recipe_of_an_older_version_with_fewer_fields_is_rebuilt(
    library: Library, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = recipes.of_context

    def older(context: Any, sha256: str) -> dict[str, Any]:
        recipe = real(context, sha256)
        del recipe["op_offload"], recipe["rope"]
        return recipe

    with monkeypatch.context() as patch:
        patch.setattr(recipes, "of_context", older)
        fill(library, model, ("short",))
    assert Rebuilder(library, str(model)).run().outcomes[0].status == "rebuilt"
    require_usable(library, model, "short")


@pytest.mark.slow
def test_thorough_proof_runs_in_processes_of_its_own(library: Library, model: Path) -> None:
    from_old_engine(library, model, "ring")
    assert Rebuilder(library, str(model), thorough=True).run().outcomes[0].status == "rebuilt"


# -- kills -----------------------------------------------------------------------------------------

_KILLED = """
import os, signal, sys
from pathlib import Path
from taliesin.store import blockfile; from taliesin.prove import rebuild
from taliesin.store.library import Library

library, model, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
left = at

def counted(real):
    def call(*args, **kwargs):
        global left
        if str(args[0]).startswith(str(library)) and "index" not in str(args[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    return call

os.rename, os.unlink = counted(os.rename), counted(os.unlink)
with Library(library) as store:
    report = rebuild.Rebuilder(store, model).run()
print(len(report.outcomes), at - left)
"""


def _rebuild_killed_at(library: Path, model: Path, at: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _KILLED, str(library), str(model), str(at)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_kill_at_any_step_loses_no_block(tmp_path: Path, model: Path) -> None:
    """Two names share a block of an old engine. The process dies before its first, second, ...
    change of a file.
    """
    for at in range(1, 20):
        with Library(tmp_path / f"library-{at}") as library:
            from_old_engine(library, model, "short")
            with library.open("short") as block:
                header, payload = block.header, block.read_at(0, block.payload_bytes)
            library.put("twin", header, payload)
            done = _rebuild_killed_at(library.path, model, at)
            if done.returncode == 0:
                break
            assert done.returncode == -signal.SIGKILL, done.stderr
            for name in ("short", "twin"):
                with library.open(name) as block:
                    block.verify()
                    assert block.header.tokens.tolist() == header.tokens.tolist()
            report = Rebuilder(library, str(model)).run()
            assert report.complete, report.outcomes
            assert report.sound
            require_usable(library, model, "twin")
            assert len({line.id for line in library.list()}) == 1, (
                f"killed at step {at}: {library.list()}"
            )
            assert [line.name for line in library.list()] == ["short", "twin"]
            assert check_library(library).findings == []
    else:
        pytest.fail("never came to the end")
    assert at > 4, "the steps were not counted"


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def run(
    library: Library, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setattr(console, "_quiet", False)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["taliesin", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, captured.out, captured.err

    return call


def test_command_says_one_line_when_nothing_is_wrong(
    run: Callable[..., tuple[int, str, str]], library: Library, model: Path
) -> None:
    from_old_engine(library, model, "short")
    fill(library, model, ("ring",))
    place = ("--library", str(library.path), "--model", str(model))
    code, out, err = run("rebuild", *place, "--dry-run")
    assert (code, out.count("\n")) == (4, 1)
    assert "1 to be rebuilt" in out
    assert "llama_cpp_python" in err
    code, out, err = run("rebuild", *place)
    assert (code, out.count("\n"), err) == (0, 1, "")
    assert out.startswith("2 blocks: 1 verified, 1 rebuilt; ")
    code, out, err = run("rebuild", *place, "--max-seconds", "0")
    assert code == 4
    assert "2 not reached" in out
    code, out, err = run("rebuild", "--library", str(library.path))
    assert code == 4
    assert err.count("warning: ") == 2
    code, out, err = run("rebuild", "nothing", *place)
    assert code == 10


def test_command_as_json_and_failure_is_exit_3(
    run: Callable[..., tuple[int, str, str]], library: Library, model: Path
) -> None:
    fill(library, model, ("short",))
    path = library.block_path(library.info("short").id)
    path.chmod(0o600)
    path.write_bytes(b"nothing")
    code, out, err = run("rebuild", "--library", str(library.path), "--model", str(model), "--json")
    assert code == 3
    assert "short: failed" in err
    fields = json.loads(out)
    assert fields["schema"] == "taliesin.rebuild/1"
    assert [block["status"] for block in fields["blocks"]] == ["failed"]


def test_command_in_a_process_of_its_own(library: Library, model: Path) -> None:
    from_old_engine(library, model, "short")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "taliesin",
            "rebuild",
            "--library",
            str(library.path),
            "--model",
            str(model),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "TERM": "dumb"},
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, "")


# -- import ----------------------------------------------------------------------------------------


def test_import_says_exact_only_after_the_certificate_held(
    run: Callable[..., tuple[int, str, str]], library: Library, model: Path, tmp_path: Path
) -> None:
    fill(library, model, ("short",))
    from_old_engine(library, model, "ring")
    bundle, other = str(tmp_path / "blocks.tar"), str(tmp_path / "other")
    assert run("export", "--all", "--library", str(library.path), "--out", bundle)[0] == 0
    code, out, err = run("import", bundle, "--library", other, "--model", str(model))
    assert (code, out) == (3, "")
    assert "short: exact here: same recipe, certificate re-checked" in err
    assert "ring: functional, not exact here: llama_cpp_python: stored '0.0.1'" in err


def test_import_computes_foreign_blocks_again_on_request(
    run: Callable[..., tuple[int, str, str]], library: Library, model: Path, tmp_path: Path
) -> None:
    from_old_engine(library, model, "ring")
    bundle, other = str(tmp_path / "blocks.tar"), str(tmp_path / "other")
    run("export", "--all", "--library", str(library.path), "--out", bundle)
    code, out, err = run(
        "import", bundle, "--library", other, "--model", str(model), "--rebuild", "--json"
    )
    assert (code, err) == (0, "")
    fields = json.loads(out)
    assert [proof["verdict"] for proof in fields["proofs"]] == ["exact"]
    assert fields["added"][0]["id"] != library.info("ring").id
    with Library(Path(other)) as there:
        require_usable(there, model, "ring")


def test_import_does_not_trust_a_recipe_whose_certificate_fails(
    run: Callable[..., tuple[int, str, str]], library: Library, model: Path, tmp_path: Path
) -> None:
    take = certificate.take
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificate, "take", lambda *a: structs.replace(take(*a), sha256=("0" * 64,)))
        fill(library, model, ("short",))
    bundle, other = str(tmp_path / "blocks.tar"), str(tmp_path / "other")
    run("export", "--all", "--library", str(library.path), "--out", bundle)
    code, _, err = run("import", bundle, "--library", other, "--model", str(model))
    assert code == 3
    assert "not exact here: same recipe, but the certificate does not hold" in err
    code, _, err = run("import", bundle, "--library", str(tmp_path / "third"))
    assert code == 0
    assert "not checked here: its model" in err
