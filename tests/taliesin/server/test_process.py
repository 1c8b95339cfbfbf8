"""What is known of llama-server without one: options, names, records, whose turn it is; and the
commands on slot files.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from typer.testing import CliRunner

from taliesin import cli
from taliesin.engine import recipe as recipes
from taliesin.errors import (
    EngineUnavailable,
    RecipeMismatch,
    ServerError,
    StoreFull,
    StoreLocked,
    UsageError,
)
from taliesin.host import console
from taliesin.server import process as server
from taliesin.server.client import checked_name
from taliesin.server.options import Options
from taliesin.server.slots import Slot, Slots
from taliesin.state import slotfile
from taliesin.store.header import BlockHeader
from taliesin.store.library import Library

GOLDEN = Path(__file__).parents[2] / "golden" / "slot_v3.bin"


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and stdout of the command, as `console.run` gives it."""
    result = CliRunner().invoke(cli.app, list(arguments))
    error = result.exception
    return getattr(error, "exit_code", result.exit_code), result.stdout


# -- options ---------------------------------------------------------------------------------------


def test_the_default_options_are_exact_and_say_so_on_the_command_line() -> None:
    options = Options(n_slots=4, n_ctx=2048)
    assert options.inexact() == []
    arguments = " ".join(options.arguments())
    for said in (
        "--parallel 4",
        "--ctx-size 8192",
        "--no-kv-unified",
        "--cache-ram 0",
        "--ctx-checkpoints 0",
        "--slot-prompt-similarity 0.0",
        "--no-cache-idle-slots",
        "--flash-attn on",
        "--fit off",
    ):
        assert said in arguments
    assert "--swa-full" not in arguments
    assert options.n_stream() == 4


@pytest.mark.parametrize(
    "options",
    [
        Options(n_slots=2, kv_unified=True),
        Options(cache_ram_mib=-1),
        Options(ctx_checkpoints=1),
        Options(slot_prompt_similarity=0.1),
    ],
)
def test_every_other_option_has_a_reason(options: Options) -> None:
    assert len(options.inexact()) == 1


@pytest.mark.parametrize(
    "wrong", [{"n_slots": 0}, {"n_ctx": 10}, {"n_ubatch": 0}, {"n_threads": 0}, {"type_k": "f17"}]
)
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Options(**wrong)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A1", "a.bin", "a" * 65, "a\n"])
def test_names_sent_to_a_server_are_hexadecimal(name: str) -> None:
    with pytest.raises(UsageError, match="not a slot file name"):
        checked_name(name)
    assert checked_name("0af9") == "0af9"


def test_only_exact_servers_have_an_embedded_twin() -> None:
    own = {
        "slots": 4,
        "kv_unified": False,
        "slot_prompt_similarity": 0.0,
        "cache_ram_mib": 0,
        "ctx_checkpoints": 0,
    }
    recipe = {"engine": "llama-server", "n_ubatch": 512, "kv_unified": False, "server": own}
    assert recipes.of_embedded_twin(recipe) == {
        "engine": "embedded",
        "n_ubatch": 512,
        "kv_unified": True,
    }
    for wrong in ({"ctx_checkpoints": 32}, {"kv_unified": True}, {"slots": None}):
        with pytest.raises(RecipeMismatch):
            recipes.of_embedded_twin(recipe | {"server": own | wrong})
    for malformed in ({"engine": "embedded"}, {"engine": "llama-server"}, recipe | {"server": {}}):
        with pytest.raises(RecipeMismatch):
            recipes.of_embedded_twin(malformed)


# -- the binary and the process --------------------------------------------------------------------


def test_a_binary_is_named_cached_or_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALIESIN_CACHE", str(tmp_path))
    with pytest.raises(EngineUnavailable, match="no llama-server") as caught:
        server.find_binary(variables={})
    assert "make server" in str(caught.value.hint)
    folder = tmp_path / "server" / "key"
    folder.mkdir(parents=True)
    binary = folder / "llama-server"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    with pytest.raises(EngineUnavailable):  # of who knows what build
        server.find_binary(variables={})
    record = {"llama_cpp_python": server.SUPPORTED_VERSION, "machine": os.uname().machine}
    (folder / "build.json").write_text(json.dumps(record))
    assert server.find_binary(variables={}) == binary
    assert server.find_binary(variables={"TALIESIN_LLAMA_SERVER": str(binary)}) == binary
    with pytest.raises(EngineUnavailable, match="not an executable"):
        server.find_binary(tmp_path / "absent")


def test_a_process_that_ends_at_once_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text("#!/bin/sh\necho cannot start; exit 3\n")
    binary.chmod(0o755)
    with pytest.raises(ServerError, match="ended while it started") as caught:
        server.launch(tmp_path / "model.gguf", Options(), tmp_path / "run", binary=binary)
    assert "exit code 3" in str(caught.value.got)
    assert "cannot start" in str(caught.value.got)


def test_a_record_of_a_process_that_is_gone_or_another_is_no_server(tmp_path: Path) -> None:
    assert server.running(tmp_path) is None
    known = {
        "url": "http://127.0.0.1:1",
        "slot_folder": str(tmp_path),
        "model": "m",
        "binary": "b",
        "log": "l",
        "key": "k",
        "pid": os.getpid(),
        "born": "1",
        "environment": {},
        "options": {},
    }
    (tmp_path / "server.json").write_text(json.dumps(known))
    assert server.running(tmp_path) is None  # this process was not born then
    assert not server.stop(tmp_path)
    assert not (tmp_path / "server.json").exists()
    broken = [json.dumps(known | wrong) for wrong in ({"url": 5}, {"options": {"n_slots": 0}})]
    for damaged in (
        "{",
        "[" * 10**5,
        "[]",
        "{}",
        *broken,
        json.dumps(known | {"options": {"n_slots": 0, "x": 1}}),
    ):
        (tmp_path / "server.json").write_text(damaged)
        with pytest.raises(ServerError, match="record of the server"):
            server.running(tmp_path)


def test_the_birth_of_a_process_tells_it_from_another() -> None:
    assert server.birth(os.getpid()) == server.birth(os.getpid()) != ""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    assert server.birth(child.pid) == ""


def test_what_a_slot_folder_holds_does_not_stop_a_start(tmp_path: Path) -> None:
    (tmp_path / "slots" / "folder" / "inner").mkdir(parents=True)
    binary = tmp_path / "llama-server"
    binary.write_text("#!/bin/sh\nexit 3\n")
    binary.chmod(0o755)
    with pytest.raises(ServerError, match="ended while it started"):
        server.start(tmp_path / "model.gguf", Options(), folder=tmp_path, binary=binary)
    assert not list((tmp_path / "slots").iterdir())
    assert not (tmp_path / "server.json").exists()


def test_a_server_is_on_record_before_it_is_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Loading takes minutes: a `start` that is killed in them must not leave a server that nobody
    # finds.
    binary = tmp_path / "llama-server"
    binary.write_text("#!/bin/sh\nexec sleep 60\n")
    binary.chmod(0o755)
    found: list[server.Server | None] = []
    monkeypatch.setattr(server, "_await_health", lambda *_: found.append(server.running(tmp_path)))
    started = server.start(tmp_path / "model.gguf", Options(), folder=tmp_path, binary=binary)
    try:
        assert found[0] is not None
        assert found[0].pid == started.pid
    finally:
        assert server.stop(tmp_path)
    assert not started.alive


def test_what_killed_private_servers_left_is_removed(tmp_path: Path) -> None:
    folders = [tmp_path / f"taliesin-server-{name}" for name in ("left", "held", "new")]
    for folder in folders:
        (folder / "slots").mkdir(parents=True)
        if folder is not folders[2]:
            os.utime(folder, (1, 1))
    lock = folders[1] / "owner.lock"
    with FileLock(lock):
        os.utime(folders[1], (1, 1))
        server._sweep(tmp_path)
    assert [folder.exists() for folder in folders] == [False, True, True]


@pytest.mark.parametrize(
    ("url", "key"),
    [("http://[::1", None), ("http://x:port", None), ("http://x", "ключ"), ("http://x", "a\nb")],
)
def test_an_address_or_key_that_cannot_be_one_is_a_usage_error(
    tmp_path: Path, url: str, key: str | None
) -> None:
    with pytest.raises(UsageError, match="not a server"):
        server.attach(url, tmp_path, key)


def test_a_server_by_address_that_is_not_there_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="does not answer") as caught:
        server.attach("http://127.0.0.1:1", tmp_path)
    assert "refused" in str(caught.value.got)


@pytest.mark.parametrize(
    "props", [{}, {"total_slots": "x"}, {"total_slots": 10**9}, {"total_slots": -1}]
)
def test_props_of_something_else_are_an_error(
    tmp_path: Path, props: dict[str, Any], tiny_model: Any
) -> None:
    from taliesin.server.backend import ServerBackend

    made = server.Server("http://127.0.0.1:1", tmp_path)
    made.client.props = lambda: {"default_generation_settings": {"n_ctx": 512}} | props  # type: ignore[method-assign]
    with pytest.raises(ServerError, match=r"/props|out of range"):
        ServerBackend(str(tiny_model()), server=made)


def test_a_server_by_address_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a server address"):
        server.attach("ftp://x", tmp_path)
    with pytest.raises(UsageError, match="slot folder"):
        server.attach("http://127.0.0.1:1", tmp_path / "absent")


# -- slots -----------------------------------------------------------------------------------------


def test_a_block_keeps_its_slot_and_the_oldest_makes_room(tmp_path: Path) -> None:
    slots = Slots(tmp_path, 2)
    numbers = []
    for block in ("a", "b", "a", "c", "b", "a"):
        with slots.lease(block) as slot:
            slot.block = block
            numbers.append(slot.number)
        time.sleep(0.002)
    # a and b; a again; c takes b's; b takes a's; a takes c's
    assert numbers == [0, 1, 0, 1, 0, 1]
    assert [s.block for s in Slots(tmp_path, 2).book()] == ["b", "a"]


def test_an_error_empties_the_slot_in_the_book(tmp_path: Path) -> None:
    slots = Slots(tmp_path, 1)
    with slots.lease("a") as slot:
        slot.block = "a"
    with pytest.raises(ValueError, match="x"), slots.lease("a"):
        raise ValueError("x")
    assert slots.book()[0].block is None


def test_a_slot_in_use_is_empty_in_the_book(tmp_path: Path) -> None:
    # Whoever is killed there leaves a slot that holds nobody knows what.
    slots = Slots(tmp_path, 1)
    with slots.lease("a") as slot:
        slot.block = "a"
    with slots.lease("a") as slot:
        assert slot.block == "a"
        assert slots.book()[0].block is None
    assert slots.book()[0].block == "a"


def test_a_book_that_cannot_be_kept_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots(tmp_path, 1)
    with slots.lease("a") as slot:
        slot.block = "a"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with slots.lease("b") as slot:
        slot.block = "b"
    assert slots.book()[0].block is None
    assert [path.name for path in tmp_path.iterdir()] == [".taliesin-slots.lock"]
    (tmp_path / ".taliesin-slots.json").mkdir()
    with pytest.raises(StoreFull, match="slot folder"), slots.lease("a"):
        pass


def test_one_request_at_a_time_across_objects_and_threads(tmp_path: Path) -> None:
    inside, most = [0], [0]

    def work() -> None:
        slots = Slots(tmp_path, 4)
        for _ in range(10):
            with slots.lease(None):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    with (
        Slots(tmp_path, 4).lease(None),
        pytest.raises(StoreLocked),
        Slots(tmp_path, 4, seconds=0.05).lease(None),
    ):
        pass


def test_a_damaged_book_reads_as_empty_slots(tmp_path: Path) -> None:
    slots = Slots(tmp_path, 2)
    wrong = (
        '"x": 1',
        '"used": "x"',
        '"used": null',
        '"block": []',
        '"end": "1"',
        '"next_token": 1.5',
        '"n_tokens": null',
    )
    for text in (
        "{",
        "[" * 10**5,
        '[{"number": 1}]',
        *(f'[{{"number": 0, {w}}}, {{"number": 1}}]' for w in wrong),
    ):
        (tmp_path / ".taliesin-slots.json").write_text(text)
        assert slots.book() == [Slot(0), Slot(1)]


def test_a_used_slot_holds_its_block_only_while_the_ring_allows(tmp_path: Path) -> None:
    window, ring = 128, 512
    fresh = Slot(0, "a", 600, 600, None)
    assert fresh.holds("a", window, ring)
    assert not fresh.holds("b", window, ring)
    assert Slot(0, "a", 600, 900, 7).holds("a", window, ring)
    assert not Slot(0, "a", 600, 600 + ring - window, 7).holds(
        "a", window, ring
    )  # the server would see no older position
    assert not Slot(0, "a", 1000, 1050, 7).holds("a", window, ring)  # round the end of the ring
    assert Slot(0, "a", 1000, 5000, 7).holds("a", 0, 0)


# -- commands --------------------------------------------------------------------------------------


def test_show_says_what_a_stock_server_makes_of_a_file() -> None:
    code, out = run("slotfile", "show", str(GOLDEN), "--json")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "taliesin.slotfile.show/1"
    assert (found["n_tokens"], found["window"], found["laid_out"]) == (300, 32, False)
    assert found["reuse"].startswith("loaded and then ignored")
    assert run("slotfile", "show", str(GOLDEN))[1].count("\n") >= 5


def test_layout_writes_a_file_that_is_reused(tmp_path: Path) -> None:
    target = tmp_path / "ring.bin"
    options = ("--ubatch", "64", "--ctx", "512")
    code, out = run("slotfile", "layout", str(GOLDEN), "--out", str(target), *options)
    assert (code, out.strip()) == (0, str(target))
    found = slotfile.read(target)
    assert found.laid_out
    assert found.n_stream == 2
    assert found.parts[1].n_cells == 256
    assert (
        json.loads(run("slotfile", "show", str(target), "--json")[1])["reuse"] == "reused as it is"
    )
    # laid out already
    assert run("slotfile", "layout", str(target), "--in-place", *options)[0] == 2
    copy = tmp_path / "copy.bin"
    copy.write_bytes(GOLDEN.read_bytes())
    assert run("slotfile", "layout", str(copy), "--in-place", "--parallel", "1", *options)[0] == 0
    assert slotfile.read(copy).n_stream == 1


def test_a_block_is_exported_as_a_slot_file(tmp_path: Path) -> None:
    own = slotfile.read(GOLDEN)
    header = BlockHeader(
        title="t",
        created="2026-01-01T00:00:00Z",
        recipe={"window": 32, "window_ring_cells": 256},
        equals="block-then-query",
        tokens=own.tokens,
        tail=own.tokens[:0],
    )
    with Library(tmp_path / "library") as library:
        library.put("block", header, own.payload())
    target = tmp_path / "out.bin"
    code, out = run(
        "slotfile",
        "export",
        "block",
        "-o",
        str(target),
        "--parallel",
        "2",
        "--library",
        str(tmp_path / "library"),
        "--json",
    )
    assert code == 0
    assert json.loads(out)["tokens"] == own.tokens.tolist()
    assert target.read_bytes() == bytes(slotfile.relay(own, n_ubatch=64, n_ctx=512))


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (2, ("layout", str(GOLDEN))),
        (2, ("layout", str(GOLDEN), "--in-place", "--kv-unified")),
        (2, ("layout", str(GOLDEN), "--out", "/nonexistent/folder/x")),
        (10, ("show", "/nonexistent")),
        (20, ("show", __file__)),
    ],
)
def test_slotfile_mistakes_have_their_exit_codes(code: int, arguments: tuple[str, ...]) -> None:
    assert run("slotfile", *arguments)[0] == code


def test_no_server_is_a_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALIESIN_SERVER_RUN", str(tmp_path))
    for verb in ("status", "stop"):
        code, out = run("server", verb, "--json")
        assert code == 3
        assert json.loads(out)["schema"] == f"taliesin.server.{verb}/1"
    console.set_quiet(False)
