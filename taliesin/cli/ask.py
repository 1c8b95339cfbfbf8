"""`taliesin route|ask`: the one block for a question, and an answer from it."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taliesin.cli import server as servers
from taliesin.cli.options import (
    EngineChoice,
    EngineName,
    GpuLayers,
    Json,
    LibraryPath,
    MemoryBudget,
    Model,
    Policy,
    Reach,
    ResidentBudget,
    default_settings,
    grouped,
    model_for,
    parse_bytes,
)
from taliesin.errors import EXIT_NO, EXIT_PARTIAL, UsageError
from taliesin.host import console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taliesin.ask.router import Candidate, Route, Router
    from taliesin.engine.embedded import Engine
    from taliesin.engine.tiers import Tiers
    from taliesin.store.library import Library

commands = typer.Typer()


class Choice(StrEnum):
    """Who decides among the top few blocks."""

    WORDS = "words"
    MODEL = "model"


Chosen = Annotated[
    Choice,
    typer.Option(
        "--choose",
        help="Who decides: the words alone, or the model among the top three (likelihood).",
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        help="Least coverage of the question, 0 to 1; calibrated if not given.",
        show_default=False,
    ),
]


@commands.command()
def route(
    query: Annotated[str, typer.Argument(help="A question.", show_default=False)],
    explain: Annotated[
        bool, typer.Option("--explain", help="The best blocks, their scores, and what they lack.")
    ] = False,
    choose: Chosen = Choice.WORDS,
    threshold: Threshold = None,
    model: Model = None,
    gpu_layers: GpuLayers = 0,
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Print the name of the one block for a question, or abstain.

    taliesin route "Who kept the light?"

    The words decide: how much of the question, weighted by how rare each word is, the best block
    contains. Below the threshold there is no block. With --choose model, the model is asked which
    of the top three makes the question the most probable.

    Exit codes: 0 a block, 2 no question, 3 none fits, 10 no library.
    """
    from taliesin.ask.router import Router
    from taliesin.store.library import Library

    if not query.strip():
        raise UsageError("nothing to route", expected="a question", got="an empty one")
    with Library(library, create=False) as store:
        found = _route(Router.of_library(store), query, threshold)
        if choose is Choice.MODEL and found.block is not None:
            from taliesin.ask.router import choose as choose_by_model
            from taliesin.engine.tiers import Tiers

            with (
                _engine(_recipe(store, found.block), model, gpu_layers) as engine,
                Tiers(engine, store) as tiers,
            ):
                found = choose_by_model(found, tiers)
    if as_json:
        console.emit_json("taliesin.route/1", found.as_dict())
    else:
        if found.block is not None:
            console.out(found.block.name)
        console.note(
            f"{found.reason}; {console.count(found.n_blocks, 'block')}, "
            f"{found.seconds * 1e3:.1f} ms"
        )
        if explain:
            console.out(_explanation(found))
    if found.block is None:
        raise typer.Exit(EXIT_NO)


def _route(router: Router, query: str, threshold: float | None) -> Route:
    from taliesin.ask.router import THRESHOLD

    return router.route(query, threshold=THRESHOLD if threshold is None else threshold)


def _explanation(found: Route) -> str:
    rows = [
        (
            c.name,
            f"{c.score:.2f}",
            f"{c.coverage:.2f}",
            "" if c.log_likelihood is None else f"{c.log_likelihood:.2f}",
            " ".join(c.missing),
            c.title[:40],
        )
        for c in found.candidates
    ]
    return console.table(("block", "score", "coverage", "likelihood", "lacks", "title"), rows)


def _recipe(store: Library, block: Candidate | None) -> Mapping[str, Any]:
    """The recipe of a routed block; empty for none."""
    if block is None:
        return {}
    with store.open(block.block_id) as opened:
        return opened.header.recipe


def _engine(recipe: Mapping[str, Any], model: str | None, gpu_layers: int) -> Engine:
    """The engine for a block's recipe; without a block (`--top-none` alone) the named or the
    default model.
    """
    from taliesin.engine.embedded import Engine
    from taliesin.models import resolve as models

    name = model_for(recipe, model) if recipe else model or models.DEFAULT
    return Engine(name, default_settings(None, None), gpu_layers)


@commands.command()
@grouped
def ask(
    queries: Annotated[
        list[str],
        typer.Argument(help="Questions; - reads one a line from stdin.", show_default=False),
    ],
    top_none: Annotated[
        bool,
        typer.Option("--top-none", help="Where no block fits, answer without one, and say so."),
    ] = False,
    n_predict: Annotated[
        int, typer.Option("--n-predict", help="Most tokens of an answer.", min=1)
    ] = 128,
    choose: Chosen = Choice.WORDS,
    threshold: Threshold = None,
    resident: ResidentBudget = "0",
    memory: MemoryBudget = "0",
    policy: Annotated[
        Policy, typer.Option("--check", help="When a block's bytes are hashed.")
    ] = Policy.ONCE,
    grammar: Annotated[
        str | None, typer.Option("--grammar", help="GBNF that the answer must follow.")
    ] = None,
    model: Model = None,
    gpu_layers: GpuLayers = 0,
    engine_name: EngineChoice = EngineName.EMBEDDED,
    reach: Reach = Reach(),
    library: LibraryPath = None,
    as_json: Json = False,
) -> None:
    """Answer questions from the library: each is routed to one block, the block grafted, and cited
    under the answer.

    taliesin ask "Who kept the light?" "What did the oil cost?" --memory 2GB

    Greedy, so the same question gives the same answer. Blocks stay near between questions as far as
    --resident and --memory allow, the least recently used goes first; what that changes is the time
    and nothing else.

    Exit codes: 0 all answered, 2 no question, 3 no block fits any of them, 4 none fits some of
    them, 10 no library, 22 the block is of another recipe or model, 31 no such model, 35
    llama-server.
    """
    from taliesin.ask.router import Router
    from taliesin.engine.tiers import TIERS, Tiers
    from taliesin.store.library import Library

    questions = [
        line.strip() for q in queries for line in (sys.stdin if q == "-" else [q]) if line.strip()
    ]
    if not questions:
        raise UsageError("nothing to answer", expected="a question", got="none")
    budgets = parse_bytes(resident), parse_bytes(memory)
    with Library(library, create=False) as store:
        router = Router.of_library(store)
        routes = [_route(router, question, threshold) for question in questions]
        first = next((r.block for r in routes if r.block is not None), None)
        answers: list[dict[str, Any]] = []
        hits: dict[str, int] = {}
        if engine_name is EngineName.SERVER:
            if top_none or choose is Choice.MODEL:
                raise UsageError("--top-none and --choose model need the embedded engine")
            answers = _of_server(store, routes, model, n_predict, grammar, policy, reach)
            for answer in answers if not as_json else ():
                _print(answer)
        elif first is not None or top_none:
            with (
                _engine(_recipe(store, first), model, gpu_layers) as engine,
                Tiers(engine, store, *budgets, policy=policy.value) as tiers,
            ):
                for found in routes:
                    answers.append(_answer(tiers, found, choose, top_none, n_predict, grammar))
                    if not as_json:
                        _print(answers[-1])
                hits = {tier: tiers.hits[tier] for tier in TIERS}
        else:
            answers = [_unanswered(found) for found in routes]
            for answer in answers if not as_json else ():
                _print(answer)
    n_answered = sum(answer["answer"] is not None for answer in answers)
    if as_json:
        console.emit_json("taliesin.ask/1", {"answers": answers, "hits": hits})
    elif hits:
        console.note("grafts from " + ", ".join(f"{tier} {n}" for tier, n in hits.items()))
    if n_answered < len(questions):
        raise typer.Exit(EXIT_PARTIAL if n_answered else EXIT_NO)


def _unanswered(found: Route) -> dict[str, Any]:
    return {
        "question": found.query,
        "answer": None,
        "block": None,
        "reason": found.reason,
        "route_seconds": found.seconds,
    }


def _answer(
    tiers: Tiers, found: Route, choose: Choice, top_none: bool, n_predict: int, grammar: str | None
) -> dict[str, Any]:
    from taliesin.engine.llama import Sampling

    fields = _unanswered(found)
    sampling = Sampling(grammar=grammar)
    if found.block is None:
        if not top_none:
            return fields
        started = time.perf_counter()
        answer = _without_block(tiers.engine, found.query, n_predict, sampling)
        return {**fields, "answer": answer, "seconds": time.perf_counter() - started}
    if choose is Choice.MODEL:
        from taliesin.ask.router import choose as choose_by_model

        found = choose_by_model(found, tiers)
    assert found.block is not None
    hit = tiers.graft(found.block.block_id)
    started = time.perf_counter()
    answer = "".join(step.text for step in hit.grafted.generate(found.query, n_predict, sampling))
    return {
        **fields,
        "answer": answer,
        "reason": found.reason,
        "block": {"name": found.block.name, "id": hit.block_id, "title": found.block.title},
        "tier": hit.tier,
        "label": hit.grafted.label,
        "graft_seconds": hit.seconds,
        "seconds": time.perf_counter() - started,
    }


def _of_server(
    store: Library,
    routes: Sequence[Route],
    model: str | None,
    n_predict: int,
    grammar: str | None,
    policy: Policy,
    reach: Reach,
) -> list[dict[str, Any]]:
    """The answers of a llama-server; its slots keep blocks near, so there are no tiers."""
    from taliesin.engine.llama import Sampling

    answers = [_unanswered(found) for found in routes]
    infos = [store.info(found.block.block_id) for found in routes if found.block is not None]
    if not infos:
        return answers
    room = (
        max(i.n_tokens + i.n_tail for i in infos)
        + max(len(r.query.encode()) for r in routes)
        + n_predict
        + 64
    )
    with ExitStack() as stack:
        engine = None
        for fields, found in zip(answers, routes, strict=True):
            if found.block is None:
                continue
            with store.open(found.block.block_id) as block:
                recipe = block.header.recipe
                if engine is None:
                    engine = servers.open_engine_for(
                        stack, recipe, model_for(recipe, model), room, reach
                    )
                started = time.perf_counter()
                put_back = engine.graft(
                    block, library=store, policy=policy.value, inexact=reach.url is not None
                )
            grafted = time.perf_counter()
            answer = put_back.place.complete(
                put_back.query(found.query), n_predict, sampling=Sampling(grammar=grammar)
            )
            fields.update(
                answer=answer.text,
                block={
                    "name": found.block.name,
                    "id": put_back.place.block_id,
                    "title": found.block.title,
                },
                tier="slot" if put_back.place.resident else "disk",
                label=put_back.label,
                graft_seconds=grafted - started,
                seconds=time.perf_counter() - grafted,
            )
    return answers


def _without_block(engine: Engine, question: str, n_predict: int, sampling: Any) -> str:
    from taliesin.engine import prompt

    shape = prompt.frame(engine.model)
    ids: Sequence[int] = [
        *shape.before,
        *engine.model.tokenize(question, special=False),
        *shape.after,
    ]
    context = engine.context(engine.settings, len(ids) + n_predict)
    context.decode(ids, 0)
    steps = engine.continue_from(context, len(ids), n_predict, sampling, frozenset(shape.stop))
    return "".join(step.text for step in steps)


def _print(answer: dict[str, Any]) -> None:
    if answer["answer"] is None:
        console.out(f"No block fits: {answer['reason']}")
        return
    console.out(answer["answer"].strip())
    block = answer["block"]
    if block is None:
        console.out("  [without a block: none fits]")
    else:
        console.out(f"  [{block['name']} {block['id'][:12]}, {answer['tier']}, {answer['label']}]")
