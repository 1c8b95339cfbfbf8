"""The router gives one block or none, the same in a library of any size, and its cache can be lost
or damaged.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from taliesin.ask.router import THRESHOLD, Document, Router, choose, log_likelihood, terms
from taliesin.cli import app
from taliesin.engine.embedded import Engine
from taliesin.engine.llama import Settings
from taliesin.engine.save import save
from taliesin.engine.tiers import Tiers
from taliesin.errors import UsageError
from taliesin.host.places import cache_dir, data_dir
from taliesin.measure import corpus
from taliesin.store.library import Library

ROOT = Path(__file__).parents[3]


def rows(name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (data_dir() / "router" / name).read_text(encoding="utf-8").splitlines()
    ]


@pytest.fixture(scope="module")
def own() -> list[Document]:
    return [Document(r["id"], r["id"], r["title"], r["text"]) for r in rows("library.jsonl")]


@pytest.mark.parametrize("n_filler", [0, 970])
def test_held_out_questions_go_to_their_block_and_outside_ones_nowhere(
    own: list[Document], n_filler: int
) -> None:
    filler = [Document(f"f{i}", f"f{i}", "", corpus.passage(7, i, 20)) for i in range(n_filler)]
    router = Router([*own, *filler])
    inside = [(q, r["id"]) for r in rows("library.jsonl")[1::2] for q in r["questions"]]
    outside = [r["question"] for r in rows("outside.jsonl")[1::2]]
    routed = [(router.route(question).block, block_id) for question, block_id in inside]
    assert all(found is None or found.block_id == block_id for found, block_id in routed)
    assert sum(found is not None for found, _ in routed) >= len(inside) - 2
    assert sum(router.route(question).block is not None for question in outside) <= 1


def test_the_threshold_in_use_is_the_calibrated_one() -> None:
    results = json.loads(
        (ROOT / "benchmarks" / "results" / "router_calibration.json").read_text(encoding="utf-8")
    )
    assert results["threshold_used"] == THRESHOLD
    assert abs(results["threshold_calibrated"] - THRESHOLD) < 0.01


def test_an_empty_library_routes_nowhere() -> None:
    route = Router([]).route("anything")
    assert route.block is None
    assert "no blocks" in route.reason


def test_two_equal_blocks_are_no_choice() -> None:
    router = Router(
        [Document("a", "a", "", "the brass bell"), Document("b", "b", "", "the brass bell")]
    )
    route = router.route("brass bell")
    assert route.block is None
    assert "equally" in route.reason


@pytest.mark.parametrize("query", ["", "  ?! ", "\x00", "the of and"])
def test_a_question_without_a_word_routes_nowhere(own: list[Document], query: str) -> None:
    assert Router(own).route(query).block is None


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Der Leuchtturmwärter heißt Grübel.", "Wie heißt der Leuchtturmwärter Grübel?"),
        ("灯台守の名前は山田です。", "灯台守の名前"),
        ("שומר המגדלור הוא אברהם", "מי שומר המגדלור"),
        ("Смотритель маяка живёт в башне", "где живёт смотритель маяка"),
        ("🦀 crabs 🦀 sell for 40 crowns", "what do crabs sell for"),
    ],
)
def test_other_scripts_are_routed_by_their_words(
    own: list[Document], text: str, query: str
) -> None:
    route = Router([*own, Document("x", "x", "", text)]).route(query)
    assert route.block is not None
    assert route.block.block_id == "x"


@given(st.text(max_size=200))
def test_terms_are_stable_under_case_and_compatibility_forms(text: str) -> None:
    import unicodedata

    assert terms(text) == terms(unicodedata.normalize("NFKC", text))
    assert all(terms(text))


@given(st.text(max_size=100))
def test_any_question_gets_an_answer(text: str) -> None:
    router = Router(
        [Document("a", "a", "Title", "some words of a text"), Document("b", "b", "", "")]
    )
    route = router.route(text)
    assert 0 <= (route.block.coverage if route.block else 0.0) <= 1 + 1e-9


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_out_of_range_is_refused(threshold: float) -> None:
    with pytest.raises(UsageError):
        Router([]).route("x", threshold=threshold)


# -- with a library --------------------------------------------------------------------------------

TEXTS = {
    "light": "The light was kept by Marta Quill for forty years. She wrote the log by hand.",
    "bread": "Barley bread needs nine hours of rest and a hot oven of stone.",
    "clock": "The tower clock loses two seconds a week. Its bell weighs 900 kilograms.",
}


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    path = tmp_path_factory.mktemp("routed") / "library"
    with Engine(str(model), Settings(n_ubatch=64, n_threads=1)) as engine, Library(path) as library:
        for name, text in TEXTS.items():
            save(engine, library, text, name)
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALIESIN_CACHE", str(tmp_path / "cache"))


@pytest.mark.native
def test_the_cached_index_routes_as_the_built_one(folder: Path) -> None:
    with Library(folder) as library:
        built = Router.of_library(library).route("Who kept the light?")
        cached = Router.of_library(library).route("Who kept the light?")
    assert built.block is not None
    assert built.block == cached.block
    assert built.block.name == "light"
    assert len(list((cache_dir() / "router").glob("*/*/documents.json"))) == 1


@pytest.mark.native
@pytest.mark.parametrize("damage", [b"", b"garbage", b"[[1, 2]]"])
def test_a_damaged_cache_is_built_again(folder: Path, damage: bytes) -> None:
    with Library(folder) as library:
        Router.of_library(library)
        for file in (cache_dir() / "router").glob("*/*/*"):
            file.write_bytes(damage)
        route = Router.of_library(library).route("Who kept the light?")
    assert route.block is not None
    assert route.block.name == "light"


@pytest.mark.native
def test_a_new_block_is_found_and_the_old_index_goes(
    folder: Path, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "library"
    with Engine(str(model), Settings(n_ubatch=64, n_threads=1)) as engine, Library(path) as library:
        save(engine, library, TEXTS["light"], "light")
        assert Router.of_library(library).route("rest of barley bread").block is None
        save(engine, library, TEXTS["bread"], "bread")
        route = Router.of_library(library).route("rest of barley bread")
        assert route.block is not None
        assert route.block.name == "bread"
    assert len(list((cache_dir() / "router").glob("*/*"))) == 1


@pytest.mark.native
def test_a_model_chooses_among_blocks_that_reach_the_threshold(folder: Path, model: Path) -> None:
    with (
        Engine(str(model), Settings(n_ubatch=64, n_threads=1)) as engine,
        Library(folder) as library,
    ):
        route = Router.of_library(library).route("Who kept the light?", threshold=0.05)
        with Tiers(engine, library, memory_bytes=1 << 30) as tiers:
            chosen = choose(route, tiers)
            expected = log_likelihood(tiers.graft("light").grafted, "Who kept the light?")
    asked = [c for c in chosen.candidates if c.log_likelihood is not None]
    assert asked
    assert chosen.block == max(asked, key=lambda c: c.log_likelihood or 0.0)
    assert next(c.log_likelihood for c in asked if c.name == "light") == expected


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.native
def test_route_prints_one_name_or_exits_three(folder: Path) -> None:
    found = invoke("route", "Who kept the light?", "--library", str(folder), "--explain")
    assert found.exit_code == 0
    assert found.stdout.splitlines()[0] == "light"
    none = invoke("route", "What is the capital of Mongolia?", "--library", str(folder), "--json")
    assert none.exit_code == 3
    assert json.loads(none.stdout)["block"] is None


@pytest.mark.native
def test_ask_answers_several_questions_and_cites_the_blocks(folder: Path, model: Path) -> None:
    arguments = [
        "--library",
        str(folder),
        "--model",
        str(model),
        "--n-predict",
        "4",
        "--memory",
        "1GB",
        "--json",
    ]
    result = invoke(
        "ask",
        "Who kept the light?",
        "Who kept the light?",
        "How much does the tower clock's bell weigh?",
        *arguments,
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [a["block"]["name"] for a in document["answers"]] == ["light", "light", "clock"]
    assert document["answers"][0]["answer"] == document["answers"][1]["answer"]
    assert document["hits"] == {"resident": 0, "memory": 1, "disk": 2}


@pytest.mark.native
def test_ask_abstains_or_answers_without_a_block_and_says_so(folder: Path, model: Path) -> None:
    arguments = ["--library", str(folder), "--model", str(model), "--n-predict", "4"]
    question = "What is the capital of Mongolia?"
    alone = invoke("ask", question, *arguments)
    assert alone.exit_code == 3
    assert "No block fits" in alone.stdout
    free = invoke("ask", question, "--top-none", *arguments)
    assert free.exit_code == 0, free.output
    assert "[without a block: none fits]" in free.stdout
    assert invoke("ask", question, "Who kept the light?", *arguments).exit_code == 4


@pytest.mark.native
def test_nothing_to_ask_is_a_usage_error(folder: Path) -> None:
    assert isinstance(invoke("ask", "  ", "--library", str(folder)).exception, UsageError)
    assert isinstance(invoke("route", " ", "--library", str(folder)).exception, UsageError)


def test_bm25s_does_not_bring_in_jax(own: list[Document]) -> None:
    import sys

    before = sys.modules.get("jax")
    Router(own)
    assert sys.modules.get("jax") is before
