"""Names: any of them is one file, and reads back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taliesin.errors import (
    UsageError,
)
from taliesin.store import refs
from taliesin.store.library import Library
from taliesin.store.refs import checked_name
from tests.taliesin.store.blocks import (
    files,
    header,
    names,
    payload,
    read,
)

pytestmark = pytest.mark.usefixtures("no_fsync")


@given(name=st.text(min_size=1, max_size=80))
@settings(max_examples=200, deadline=None)
def test_any_name_stays_one_file_in_refs_and_reads_back(name: str) -> None:
    try:
        checked = checked_name(name)
    except UsageError:
        return
    file = refs.file_of(checked)
    assert b"/" not in file
    assert not file.startswith(b".")
    assert len(file) <= 240
    assert refs.name_of(file) == checked


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/abs",
        ".",
        "..",
        ".hidden",
        "a/b",
        "a\\b",
        "100%",
        "%2F",
        "ŵy 諸子",
        "-rf",
        "e\u0301",
        "CON",
        "a.json",
    ],
)
def test_odd_name_is_only_a_name(store: Library, name: str) -> None:
    before = set(store.path.parent.iterdir())
    store.put(name, header(), payload())
    assert set(store.path.parent.iterdir()) == before
    assert len(list((store.path / "refs").iterdir())) == 1
    assert names(store) == [checked_name(name)]
    assert read(store, name) == payload()
    store.rename(name, "plain")
    assert names(store) == ["plain"]


def test_composed_and_decomposed_spelling_are_one_name(store: Library) -> None:
    store.put("caf\u00e9", header(), payload())
    assert read(store, "cafe\u0301") == payload()


@pytest.mark.parametrize(
    "name",
    [
        "",
        " a",
        "a ",
        "a\nb",
        "a\0b",
        "\x1b[31m",
        "a\u202eb",
        "\ud800",
        "x" * 201,
        "諸" * 81,
        "\u00a0a",
    ],
)
def test_malformed_name_is_refused(store: Library, name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        store.put(name, header(), payload())
    assert files(store).keys() == {"library.json"}
