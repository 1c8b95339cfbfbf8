"""Grafting on a real llama-server, with tiny random models: what bits say does not depend on what
weights say.

Needs the binary of `make server` (or TALIESIN_LLAMA_SERVER); without one every test here is
skipped.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from taliesin import cli
from taliesin.engine.backend import LOGITS, Backend
from taliesin.engine.embedded import Engine
from taliesin.engine.llama import Settings
from taliesin.engine.report import GraftReport
from taliesin.engine.report import report as report_graft
from taliesin.engine.save import save, save_tokens
from taliesin.errors import (
    ContextFull,
    EngineUnavailable,
    RecipeMismatch,
    ServerError,
    StoreDamaged,
    UsageError,
)
from taliesin.server import process as server
from taliesin.server.backend import ServerBackend
from taliesin.server.client import N_PROBS
from taliesin.server.options import Options
from taliesin.server.process import Server
from taliesin.server.served import LEVEL
from taliesin.server.verify import STEPS, verify
from taliesin.state import slotfile
from taliesin.store.check import check as check_library
from taliesin.store.library import Library

pytestmark = [pytest.mark.native, pytest.mark.slow]

Models = Callable[..., Path]
UBATCH = 256  # with a window of 128: a ring of 512 cells
OPTIONS = Options(n_slots=4, n_ctx=2048, n_ubatch=UBATCH, n_threads=1)
SETTINGS = Settings(n_ubatch=UBATCH, n_threads=1)


@pytest.fixture(scope="module", autouse=True)
def binary() -> Path:
    try:
        return server.find_binary()
    except EngineUnavailable as error:
        pytest.skip(f"no llama-server: {error.hint}")


@contextlib.contextmanager
def serving(
    model: Path, folder: Path, options: Options = OPTIONS, arguments: tuple[str, ...] = ()
) -> Iterator[Server]:
    made = server.launch(model, options, folder, arguments=arguments)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module", params=["window", "plain"])
def engine(
    request: pytest.FixtureRequest, tiny_model: Models, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A ServerBackend on a server of four slots, on a model with window layers and on one
    without.
    """
    model = tiny_model() if request.param == "window" else tiny_model(window=0)
    with (
        serving(model, tmp_path_factory.mktemp("server")) as made,
        ServerBackend(str(model), server=made) as ready,
    ):
        yield ready


def ids(n: int, seed: int = 1) -> list[int]:
    """Seeded ids of printable text, BOS first."""
    return [1, *random.Random(seed).choices(range(261, 355), k=n - 1)]


def text(n: int, seed: int = 1) -> str:
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz    ", k=n))


# 512 cells: shorter, full, and wrapped with the head below, inside and beyond the window's width.
LENGTHS = (200, 512, 600, 700, 900, 1024, 1300)


@pytest.mark.parametrize("n", LENGTHS)
def test_a_graft_equals_the_live_run_at_every_length(
    engine: ServerBackend, tmp_path: Path, n: int
) -> None:
    with Library(tmp_path / "library") as library:
        save_tokens(engine, library, ids(n), "block", align="whole")
        with library.open("block") as block:
            report = verify(engine, block, lengths=(1, 7, 64))
    for row in report.rows:
        assert (row.n_reused, row.n_evaluated) == (n, row.query_tokens)
        assert (row.tokens_block_then_query, row.equal_block_then_query) == (STEPS, STEPS)
        if n % UBATCH == 0:
            assert row.equal_one_shot == STEPS
    assert report.exact
    assert report.level == LEVEL


def test_what_is_written_for_a_backend_runs_on_both(engine: ServerBackend, tmp_path: Path) -> None:
    def use(backend: Backend, library: Library) -> tuple[str, GraftReport]:
        (saved,) = save(backend, library, text(900), backend.kind)
        with library.open(saved.info.id) as block:
            grafted = backend.graft(block, library=library)
        answer = "".join(step.text for step in grafted.generate("what?", 8))
        assert grafted.place.asked.n_reused == len(saved.header.tokens)
        assert grafted.exact
        return answer, report_graft(grafted, answer)

    with (
        Library(tmp_path / "library") as library,
        Engine(str(engine.model.path), settings=SETTINGS) as embedded,
    ):
        answers = [use(backend, library) for backend in (engine, embedded)]
        with library.open("server") as block, pytest.raises(UsageError, match="no logits"):
            engine.graft(block).prefill([300])
    assert len({answer for answer, _ in answers}) == 1
    assert [outcome.engine for _, outcome in answers] == ["server", "embedded"]
    assert [outcome.level for _, outcome in answers] == [LEVEL, LOGITS]


def test_a_short_block_under_a_long_query_is_still_used(
    engine: ServerBackend, tmp_path: Path
) -> None:
    """Less than a tenth of the prompt, which is llama-server's own threshold for keeping what a
    slot holds.
    """
    with Library(tmp_path / "library") as library:
        save_tokens(engine, library, ids(150), "block", align="whole")
        with library.open("block") as block:
            report = verify(engine, block, lengths=(1500,))
    assert report.exact
    assert report.rows[0].n_reused == 150


def test_a_server_with_full_window_caches_is_exact_and_reuses_short_blocks(
    tiny_model: Models, tmp_path: Path
) -> None:
    model = tiny_model()
    options = Options(n_slots=2, n_ctx=2048, n_ubatch=UBATCH, n_threads=1, swa_full=True)
    with (
        serving(model, tmp_path / "server", options) as made,
        ServerBackend(str(model), server=made) as engine,
        Library(tmp_path / "library") as library,
    ):
        for n in (100, 700, 1300):
            save_tokens(engine, library, ids(n), f"b{n}", align="whole")
            with library.open(f"b{n}") as block:
                assert verify(engine, block).exact


@pytest.mark.parametrize("n", [300, 900, 1024])
def test_server_and_embedded_engine_save_the_same_bytes(
    engine: ServerBackend, tmp_path: Path, n: int
) -> None:
    with (
        Library(tmp_path / "library") as library,
        Engine(str(engine.model.path), settings=SETTINGS) as embedded,
    ):
        save_tokens(engine, library, ids(n), "server", align="whole")
        save_tokens(embedded, library, ids(n), "embedded", align="whole")
        with library.open("server") as ours, library.open("embedded") as theirs:
            assert ours.payload_bytes == theirs.payload_bytes
            assert ours.read_at(0, ours.payload_bytes) == theirs.read_at(0, theirs.payload_bytes)


def test_a_block_of_the_embedded_engine_serves_the_server(
    engine: ServerBackend, tmp_path: Path
) -> None:
    with (
        Library(tmp_path / "library") as library,
        Engine(str(engine.model.path), settings=SETTINGS) as embedded,
    ):
        save(embedded, library, text(1500), "block")
        with library.open("block") as block:
            report = verify(engine, block)
            grafted = engine.graft(block, library=library, certify=True)
            answer = grafted.place.complete(grafted.query("what?"), 12, ignore_eos=True)
            put_back = embedded.graft(block, library=library)
            logits = put_back.prefill(put_back.query("what?"))
    assert report.exact
    assert grafted.certified
    assert grafted.label.startswith("exact")
    assert answer.tokens[0] == int(logits.argmax())


def test_a_block_of_the_server_comes_back_to_the_embedded_engine(
    engine: ServerBackend, tmp_path: Path
) -> None:
    with (
        Library(tmp_path / "library") as library,
        Engine(str(engine.model.path), settings=SETTINGS) as embedded,
    ):
        save_tokens(engine, library, ids(900), "server", align="whole")
        save_tokens(embedded, library, ids(900), "embedded", align="whole")
        with library.open("server") as ours, library.open("embedded") as theirs:
            back = embedded.graft(ours, library=library)
            label, logits = back.label, back.prefill(ids(7, 2)).tobytes()
            assert embedded.graft(theirs, library=library).prefill(ids(7, 2)).tobytes() == logits
    assert label.startswith("exact: same recipe, computed by llama-server")


def test_a_question_is_answered_from_the_slot_that_holds_the_block(
    engine: ServerBackend, tmp_path: Path
) -> None:
    with Library(tmp_path / "library") as library:
        save_tokens(engine, library, ids(600, 3), "block", align="whole")
        with library.open("block") as block:
            grafted = engine.graft(block)
            first = grafted.place.complete(ids(9, 4), 4, n_probs=N_PROBS, ignore_eos=True)
            again = grafted.place.complete(ids(9, 4), 4, n_probs=N_PROBS, ignore_eos=True)
            assert grafted.place.restores == 1
            assert engine.graft(block).place.resident
    assert again.cache_n == 600  # not the question as well
    assert again.logprobs == first.logprobs


def test_five_blocks_in_four_slots_stay_exact(engine: ServerBackend, tmp_path: Path) -> None:
    with Library(tmp_path / "library") as library:
        answers = {}
        for seed in range(5):
            save_tokens(engine, library, ids(530 + seed, seed), f"b{seed}", align="whole")
        for _round in range(2):
            for seed in range(5):
                with library.open(f"b{seed}") as block:
                    answer = engine.graft(block).place.complete(
                        ids(5, 9), 4, n_probs=N_PROBS, ignore_eos=True
                    )
                assert answers.setdefault(seed, answer.logprobs) == answer.logprobs


def test_an_unpinned_request_does_not_use_the_block_and_a_pinned_one_does(
    engine: ServerBackend, tmp_path: Path
) -> None:
    with Library(tmp_path / "library") as library:
        save_tokens(engine, library, ids(600), "block", align="whole")
        with library.open("block") as block:
            grafted = engine.graft(block)
            with engine.slots.lease(grafted.place.block_id) as slot:
                grafted.place.bring_in(slot, None)
                unpinned = engine.server.client.complete([*ids(600), 300], 1, -1)
                slot.block = None
            pinned = grafted.place.complete([300], 1)
    assert unpinned.cache_n <= 1  # the first token is every prompt's
    assert (pinned.cache_n, pinned.prompt_n) == (600, 1)


def test_a_stock_slot_file_is_loaded_and_ignored_until_it_is_laid_out(
    tiny_model: Models, tmp_path: Path
) -> None:
    model = tiny_model()
    options = Options(n_slots=1, n_ctx=2048, n_ubatch=UBATCH, n_threads=1)
    block, query = ids(700), ids(6, 2)
    kept = tmp_path / "own.bin"
    with serving(model, tmp_path / "one", options) as made:
        made.client.complete(block, 0, 0)
        made.client.save_slot(0, "a")
        kept.write_bytes((made.slot_folder / "a").read_bytes())
        live = made.client.complete([*block, *query], STEPS, 0, n_probs=N_PROBS, ignore_eos=True)
    with serving(model, tmp_path / "two", options) as made:
        (made.slot_folder / "a").write_bytes(kept.read_bytes())
        assert made.client.restore_slot(0, "a") == 700
        ignored = made.client.complete([*block, *query], STEPS, 0, n_probs=N_PROBS, ignore_eos=True)
        assert (ignored.cache_n, ignored.prompt_n) == (0, 706)
        own = slotfile.read(kept)
        image = slotfile.lay_out(memoryview(b"".join(own.payload())), own.tokens, own.window, 512)
        slotfile.write(made.slot_folder / "b", image)
        assert made.client.restore_slot(0, "b") == 700
        used = made.client.complete([*block, *query], STEPS, 0, n_probs=N_PROBS, ignore_eos=True)
    assert (used.cache_n, used.prompt_n) == (700, 6)
    assert used.tokens == live.tokens
    assert used.logprobs == live.logprobs
    assert len(used.logprobs) == STEPS


def test_an_ineffective_restore_is_an_error_that_names_the_cause(
    tiny_model: Models, tmp_path: Path
) -> None:
    model = tiny_model()
    with (
        serving(model, tmp_path / "server") as made,
        ServerBackend(str(model), server=made) as engine,
        Library(tmp_path / "library") as library,
    ):
        save_tokens(engine, library, ids(700), "block", align="whole")
        with library.open("block") as block:
            grafted = engine.graft(block)
            # a file as the server saves it, in place of the laid-out one
            with engine.slots.lease(None) as slot:
                engine.server.client.complete(ids(700), 0, slot.number)
                made.client.save_slot(slot.number, "f")
            grafted.place.image = memoryview((made.slot_folder / "f").read_bytes())
            for number in range(4):
                made.client.erase_slot(number)
            with pytest.raises(ServerError, match="did not use the block") as caught:
                grafted.place.complete([300], 1)
    assert caught.value.got == "0 reused, 701 evaluated"
    assert "window layers" in str(caught.value.hint)


def test_a_block_inside_the_window_is_refused_not_silently_recomputed(
    tiny_model: Models, tmp_path: Path
) -> None:
    model = tiny_model()
    with (
        serving(model, tmp_path / "server") as made,
        ServerBackend(str(model), server=made) as engine,
        Library(tmp_path / "library") as library,
        Engine(str(model), settings=SETTINGS) as embedded,
    ):
        save_tokens(embedded, library, ids(100), "short", align="whole")
        with (
            library.open("short") as block,
            pytest.raises(ServerError, match="fits inside the window"),
        ):
            engine.graft(block)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            Options(n_slots=2, n_ctx=1024, n_ubatch=UBATCH, n_threads=1, kv_unified=True),
            "--kv-unified",
        ),
        (Options(n_ctx=1024, n_ubatch=UBATCH, n_threads=1, cache_ram_mib=64), "--cache-ram"),
        (Options(n_ctx=1024, n_ubatch=UBATCH, n_threads=1, ctx_checkpoints=4), "--ctx-checkpoints"),
    ],
)
def test_options_that_are_not_exact_are_never_called_exact(
    tiny_model: Models, tmp_path: Path, options: Options, reason: str
) -> None:
    model = tiny_model()
    with (
        serving(model, tmp_path / "server", options) as made,
        ServerBackend(str(model), server=made) as engine,
        Library(tmp_path / "library") as library,
        Engine(str(model), settings=SETTINGS) as embedded,
    ):
        with pytest.raises(RecipeMismatch, match="would not be exact"):
            save_tokens(engine, library, ids(600), "block")
        save_tokens(embedded, library, ids(600), "block", align="whole")
        with library.open("block") as block:
            with pytest.raises(RecipeMismatch) as caught:
                engine.graft(block)
            grafted = engine.graft(block, inexact=True) if not options.kv_unified else None
    assert reason in str(caught.value.got)
    if grafted is not None:
        assert grafted.label.startswith("inexact")


def test_a_block_of_another_model_or_recipe_is_refused(
    engine: ServerBackend, tiny_model: Models, tmp_path: Path
) -> None:
    window = engine.model.window
    with (
        Library(tmp_path / "library") as library,
        Engine(str(tiny_model(2, window)), settings=SETTINGS) as foreign,
        Engine(str(engine.model.path), settings=Settings(n_ubatch=128, n_threads=1)) as other,
    ):
        save_tokens(foreign, library, ids(600), "foreign", align="whole")
        save_tokens(other, library, ids(600), "other", align="whole")
        for name, field in (("foreign", "model_sha256"), ("other", "n_ubatch")):
            with library.open(name) as block, pytest.raises(RecipeMismatch, match=field):
                engine.graft(block)


def test_a_damaged_block_is_refused_before_the_server_is_touched(
    engine: ServerBackend, tmp_path: Path
) -> None:
    with Library(tmp_path / "library") as library:
        save_tokens(engine, library, ids(600), "block", align="whole")
        path = library.block_path(library.info("block").id)
        path.chmod(0o600)
        with path.open("r+b") as file:
            file.seek(-100, 2)
            file.write(b"\xff\xfe\xfd")
        before = engine.slots.book()
        with library.open("block") as block, pytest.raises(StoreDamaged):
            engine.graft(block, library=library)
    assert engine.slots.book() == before


def test_a_prompt_that_does_not_fit_is_refused(engine: ServerBackend, tmp_path: Path) -> None:
    with Library(tmp_path / "library") as library, pytest.raises(ContextFull):
        save_tokens(engine, library, ids(3000), "block")


# -- faults ----------------------------------------------------------------------------------------


def test_bad_slot_files_are_refused_and_live_slots_stay(
    engine: ServerBackend, tiny_model: Models, tmp_path: Path
) -> None:
    """What the server is never sent: every one of these is refused while parsing."""
    client, folder = engine.server.client, engine.server.slot_folder
    with Library(tmp_path / "library") as library:
        save_tokens(engine, library, ids(600), "block", align="whole")
        with library.open("block") as block:
            grafted = engine.graft(block)
            before = grafted.place.complete([300, 301], 3, n_probs=N_PROBS, ignore_eos=True)
            good = bytes(grafted.place.image)
            bad = {
                "a1": good[: len(good) // 2],
                "a2": b"",
                "a3": good[:4] + (2).to_bytes(4, "little") + good[8:],
                "a4": b"GGUF" + good[4:],
                "a5": good + b"\0",
            }
            for name, data in bad.items():
                (folder / name).write_bytes(data)
                with pytest.raises(Exception) as caught:  # noqa: PT011
                    slotfile.read(folder / name)
                assert getattr(caught.value, "exit_code", 1) in (20, 21)
                (folder / name).unlink()
            # A missing file is the server's to refuse. It empties that slot; the others must not
            # notice.
            with engine.slots.lease(None) as other:
                assert other.block != grafted.place.block_id
                with pytest.raises(ServerError, match="refused"):
                    client.restore_slot(other.number, "0123")
                other.block = None
            after = grafted.place.complete([300, 301], 3, n_probs=N_PROBS, ignore_eos=True)
    assert after.logprobs == before.logprobs


@pytest.mark.parametrize("moment", ["save", "restore", "generation"])
def test_a_killed_server_is_an_error_and_a_new_one_goes_on(
    tiny_model: Models, tmp_path: Path, moment: str
) -> None:
    model = tiny_model()
    with Library(tmp_path / "library") as library:
        with (
            serving(model, tmp_path / "one") as made,
            ServerBackend(str(model), server=made) as engine,
        ):
            save_tokens(engine, library, ids(900), "block", align="whole")
            with library.open("block") as block:
                grafted = engine.graft(block)
                expected = grafted.place.complete([300], 8, n_probs=N_PROBS, ignore_eos=True)

            def again_and_again() -> None:
                until = time.monotonic() + 60
                while time.monotonic() < until:
                    if moment == "save":
                        save_tokens(
                            engine,
                            library,
                            ids(1200, 7),
                            "other",
                            align="whole",
                            replace_existing=True,
                        )
                    elif moment == "restore":
                        with engine.slots.lease(None) as slot:
                            slot.block = None
                            grafted.place.bring_in(slot, None)
                    else:
                        grafted.place.complete([300], 600, ignore_eos=True)

            assert made._process is not None
            threading.Timer(0.3, made._process.kill).start()
            with pytest.raises(ServerError, match="does not answer"):
                again_and_again()
            assert not any(path.name[0] != "." for path in made.slot_folder.iterdir())
        assert check_library(library).sound
        with (
            serving(model, tmp_path / "one") as made,
            ServerBackend(str(model), server=made) as engine,
            library.open("block") as block,
        ):
            answer = engine.graft(block).place.complete([300], 8, n_probs=N_PROBS, ignore_eos=True)
    assert answer.logprobs == expected.logprobs


def test_two_clients_at_once_get_the_answers_of_one(tiny_model: Models, tmp_path: Path) -> None:
    """Four slots, six blocks, two clients with an engine each; shorter than the benchmark's minute
    (benchmarks/server_table.py).
    """
    model = tiny_model()
    with serving(model, tmp_path / "server") as made, Library(tmp_path / "library") as library:
        fresh: dict[tuple[int, int], Any] = {}
        with ServerBackend(str(model), server=made) as engine:
            for b in range(6):
                save_tokens(engine, library, ids(300 + 150 * b, b), f"b{b}", align="whole")
                for q in range(3):
                    with engine.slots.lease(None) as slot:
                        slot.block = None
                        made.client.erase_slot(slot.number)
                        made.client.complete(ids(300 + 150 * b, b), 0, slot.number)
                        prompt = [*ids(300 + 150 * b, b), *ids(4 + q, 50 + q)]
                        fresh[b, q] = made.client.complete(
                            prompt, 6, slot.number, n_probs=N_PROBS, ignore_eos=True
                        )
        wrong: list[object] = []
        done = [0, 0]

        def client(number: int) -> None:
            rng = random.Random(number)
            try:
                with (
                    Library(tmp_path / "library") as mine,
                    ServerBackend(str(model), server=made) as engine,
                ):
                    until = time.monotonic() + 6
                    while time.monotonic() < until:
                        b, q = rng.randrange(6), rng.randrange(3)
                        with mine.open(f"b{b}") as block:
                            grafted = engine.graft(block, library=mine)
                            answer = grafted.place.complete(
                                ids(4 + q, 50 + q), 6, n_probs=N_PROBS, ignore_eos=True
                            )
                        if (answer.tokens, answer.logprobs) != (
                            fresh[b, q].tokens,
                            fresh[b, q].logprobs,
                        ):
                            wrong.append((b, q))
                        done[number] += 1
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=client, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert min(done) > 0


# -- the process -----------------------------------------------------------------------------------


def test_a_started_server_is_found_used_and_stopped(tiny_model: Models, tmp_path: Path) -> None:
    place, model = tmp_path / "run", tiny_model()
    assert server.running(place) is None
    made = server.start(model, OPTIONS, folder=place)
    try:
        again = server.start(model, OPTIONS, folder=place)
        assert again.pid == made.pid
        found = server.running(place)
        assert found is not None
        assert found.client.healthy()
        assert found.options == OPTIONS
        with pytest.raises(UsageError, match="other options"):
            server.start(model, Options(), folder=place)
        assert (place / "server.json").stat().st_mode & 0o077 == 0
    finally:
        assert server.stop(place)
    assert server.running(place) is None
    assert not server.stop(place)


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    model = tmp_path / "empty.gguf"
    model.write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(ServerError, match="ended while it started"):
        server.launch(model, OPTIONS, tmp_path / "server")


def test_a_foreign_server_is_used_but_never_called_exact(
    tiny_model: Models, tmp_path: Path
) -> None:
    model = tiny_model()
    with (
        serving(model, tmp_path / "server") as made,
        Library(tmp_path / "library") as library,
        Engine(str(model), settings=SETTINGS) as embedded,
    ):
        save_tokens(embedded, library, ids(600), "block", align="whole")
        foreign = server.attach(made.url, made.slot_folder, made.key)
        with ServerBackend(str(model), server=foreign) as engine, library.open("block") as block:
            with pytest.raises(RecipeMismatch, match="options"):
                engine.graft(block)
            assert engine.graft(block, inexact=True).label.startswith("inexact")
        with pytest.raises(ServerError, match="does not answer"):
            server.attach("http://127.0.0.1:9", made.slot_folder)


# -- commands --------------------------------------------------------------------------------------


def test_the_commands_work_on_a_started_server_and_without_one(
    tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALIESIN_SERVER_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("TALIESIN_LIBRARY", str(tmp_path / "library"))
    model = ("--model", str(tiny_model()))
    notes = tmp_path / "notes.txt"
    notes.write_text("The keeper of the light is Ann. " + text(600), encoding="utf-8")

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(cli.app, [*arguments, "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    started = run("server", "start", *model, "--slots", "2", "--threads", "1", "--ubatch", "128")
    try:
        assert started["exact"]
        saved = run(
            "save",
            str(notes),
            "--name",
            "notes",
            *model,
            "--engine",
            "server",
            "--threads",
            "1",
            "--ubatch",
            "128",
        )
        answers = [
            run(
                "graft", "notes", "-p", "who?", "-n", "4", *model, "--engine", "server", "--certify"
            )
        ]
        assert answers[0]["exact"]
        assert answers[0]["certified"]
        assert answers[0]["n_reused"] == saved["blocks"][0]["n_tokens"]
        served = run("verify", "notes", *model, "--engine", "server", "--steps", "8")
        assert served["exact"]
        asked = run(
            "ask",
            "Who is the keeper of the light?",
            *model,
            "--engine",
            "server",
            "--n-predict",
            "4",
        )
        assert asked["answers"][0]["block"]["name"] == "notes"
        held = [slot["block"] for slot in run("server", "status")["slots"]]
        assert saved["blocks"][0]["id"] in held
    finally:
        assert run("server", "stop")["stopped"]
    answers.append(run("graft", "notes", "-p", "who?", "-n", "4", *model, "--engine", "server"))
    # the embedded engine, the server's block
    answers.append(run("graft", "notes", "-p", "who?", "-n", "4", *model))
    assert len({answer["text"] for answer in answers}) == 1
    # One shape, whichever engine answered.
    assert [answer["engine"] for answer in answers] == ["server", "server", "embedded"]
    assert {answer["schema"] for answer in answers} == {"taliesin.graft/2"}
    assert len({tuple(answer) for answer in answers}) == 1
    run("save", str(notes), "--name", "own", *model, "--threads", "1", "--ubatch", "128")
    here = run("verify", "own", *model, "--trials", "1", "--steps", "2", "--queries", "1,7")
    assert here["exact"]
    assert (here["schema"], here["engine"]) == ("taliesin.verify/2", "embedded")
    assert (served["schema"], served["engine"]) == ("taliesin.verify/2", "server")
    assert tuple(here) == tuple(served)
    assert tuple(here["rows"][0]) == tuple(served["rows"][0])
