"""Shared options: a group stands for its options, and an application is silent when told so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from galahad.cli import app as galahad
from taliesin import __version__
from taliesin.cli import app as taliesin
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


def float_options(command: Any, *verbs: str) -> Iterator[tuple[str, ...]]:
    """Every option of a command's verbs that takes a number with a fraction, behind its verbs."""
    for option in command.params:
        if option.type.name.startswith("float"):
            yield (*verbs, option.opts[0])
    for name, verb in getattr(command, "commands", {}).items():
        yield from float_options(verb, *verbs, name)


FLOATS = [
    pytest.param(app, arguments, id=" ".join(arguments))
    for app in (taliesin, galahad)
    for arguments in float_options(typer.main.get_command(app))
]


def test_options_with_a_fraction_are_found_in_every_place() -> None:
    found = {arguments for _, arguments in (one.values for one in FLOATS)}
    assert {
        ("graft", "--temperature"),
        ("isomorph", "--timeout"),
        ("bank", "route", "--threshold"),
    } <= (found)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e400"])
@pytest.mark.parametrize(("app", "arguments"), FLOATS)
def test_no_option_takes_a_number_that_is_not_finite(
    app: typer.Typer, arguments: tuple[str, ...], number: str
) -> None:
    *verbs, option = arguments
    done = CliRunner().invoke(app, [*verbs, f"{option}={number}"])
    assert done.exit_code == 2
    assert option in done.stderr
    assert "finite" in done.stderr or "range" in done.stderr
