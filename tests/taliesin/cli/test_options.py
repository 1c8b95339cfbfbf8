"""Shared options: a group stands for its options, and an application is silent when told so."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from taliesin import __version__
from taliesin.cli.options import Json, Reach, application, default_settings, grouped
from taliesin.host import console
from taliesin.host.machine import usable_cores

seen: list[tuple[str, Reach, bool]] = []


def app() -> typer.Typer:
    made = application("A command.")

    @made.command()
    @grouped
    def reach(name: str, server: Reach = Reach(), as_json: Json = False) -> None:
        seen.append((name, server, as_json))

    @made.command()
    def other() -> None:
        console.note("noted")

    return made


def test_a_group_is_given_by_its_own_options_in_its_place() -> None:
    seen.clear()
    arguments = ["reach", "x", "--server-url", "http://h:1", "--slot-save-path", "slots", "--json"]
    done = CliRunner().invoke(app(), arguments)
    assert (done.exit_code, seen) == (
        0,
        [("x", Reach(None, "http://h:1", Path("slots"), None), True)],
    )
    shown = CliRunner().invoke(app(), ["reach", "--help"]).stdout
    places = [
        shown.index(option) for option in ("--server-bin", "--server-url", "--server-key", "--json")
    ]
    assert places == sorted(places)


def test_a_group_that_is_not_given_has_its_defaults() -> None:
    seen.clear()
    assert CliRunner().invoke(app(), ["reach", "x"], env={"TALIESIN_SERVER_KEY": ""}).exit_code == 0
    assert seen == [("x", Reach(), False)]


def test_every_application_tells_its_version_and_can_be_quiet() -> None:
    assert CliRunner().invoke(app(), ["--version"]).stdout == f"{__version__}\n"
    try:
        assert CliRunner().invoke(app(), ["--quiet", "other"]).stderr == ""
        assert CliRunner().invoke(app(), ["other"]).stderr == "noted\n"
    finally:
        console.set_quiet(False)


def test_threads_of_a_new_block_are_few_enough_for_smaller_machines() -> None:
    assert default_settings(None, None).n_threads == min(usable_cores(), 8)
    assert (default_settings(3, 64).n_threads, default_settings(3, 64).n_ubatch) == (3, 64)
