"""Replay: rows of passes against a server, equality with a cold pass, and going on after a stop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from taliesin.errors import FormatError, ServerError, UsageError
from taliesin.measure import replay
from taliesin.measure.replay import Asker, Part, Row
from taliesin.measure.traces import Talk
from taliesin.serve import plan
from taliesin.serve.plan import Begun, Cancellation, Ended, Event, Job, Usage
from taliesin.serve.requests import Request
from tests.taliesin.serve.fronts import Scripted, fronted


class Remembering(Scripted):
    """A service that finds the whole of a prompt that it has seen, and answers with its length;
    with `wrong` other numbers where it found one.
    """

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong = wrong
        self.seen: set[str] = set()
        self.bodies: list[dict[str, object]] = []

    def prepare(self, request: Request) -> Job:
        self.bodies.append(dict(request.body))
        asked = json.dumps(request.body.get("messages", request.body.get("prompt")))

        def job(_: Cancellation) -> Iterator[Event]:
            cached = len(asked) if asked in self.seen and request.fields.cache_prompt else 0
            self.seen.add(asked)
            score = -0.5 - (0.25 if self.wrong and cached else 0)
            told = {"content": [{"token": "a", "logprob": score, "top_logprobs": []}]}
            yield Begun(None, cached, "")
            yield plan.Part({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            yield plan.Part({"choices": [{"delta": {"content": "a"}, "logprobs": told}]})
            usage = {
                "prompt_tokens": len(asked),
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": cached},
            }
            yield plan.Part({"choices": [], "usage": usage})
            yield Ended(Usage(len(asked), cached, 1))

        return job

    def counts(self) -> list[plan.Count]:
        return [plan.Count("cache_written_bytes_total", "", 100 * len(self.seen))]


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


TALKS = [
    Talk(
        [said("user", f"q{n}"), said("assistant", "a"), said("user", "more"), said("assistant", "")]
    )
    for n in range(3)
]
WANTED = replay.jobs(TALKS)


def played(service: Remembering, file: Path, *labels: str, clients: int = 1) -> None:
    with fronted(service) as front:
        asker = Asker(front.url)
        for label in labels:
            assert replay.replay(asker, WANTED, label, file, clients=clients)
        asker.close()


def test_passes_are_counted_and_compared_with_the_cold_one(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    service = Remembering()
    played(service, file, "first", "again", "cold")
    found = {p.label: p for p in replay.report(*replay.read(file)).passes}
    assert [p.requests for p in found.values()] == [6, 6, 6]
    assert (found["first"].share, found["again"].share, found["cold"].share) == (0, 1, 0)
    assert (found["again"].compared, found["again"].equal_scores) == (6, 6)
    assert found["first"].written_bytes == 600
    assert found["again"].written_per_reused == 0
    assert [b.get("cache_prompt") for b in service.bodies] == [None] * 12 + [False] * 6
    assert service.bodies[0]["logprobs"] is True


def test_an_answer_with_other_numbers_is_not_equal(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    played(Remembering(wrong=True), file, "first", "again", "cold")
    again = replay.report(*replay.read(file)).passes[1]
    assert (again.equal_tokens, again.equal_scores, again.compared) == (6, 0, 6)


def test_a_pass_that_was_stopped_goes_on_where_it_ended(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    with fronted(Remembering()) as front:
        asker = Asker(front.url)
        assert not replay.replay(asker, WANTED, "warm", file, max_seconds=0.0)
        assert replay.replay(asker, WANTED[:1], "warm", file)
        assert replay.replay(asker, WANTED, "warm", file)
        asker.close()
    rows, parts = replay.read(file)
    assert sorted((r.talk, r.turn) for r in rows) == [(n, t) for n in range(3) for t in range(2)]
    assert [p.requests for p in parts] == [0, 2, 4]


def test_clients_share_the_conversations_and_each_keeps_its_order(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    played(Remembering(), file, "three", clients=3)
    rows, (part,) = replay.read(file)
    assert (len(rows), part.clients) == (6, 3)
    for talk in range(3):
        assert [r.turn for r in rows if r.talk == talk] == [0, 1]


def test_nothing_that_was_said_is_written_down(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    played(Remembering(), file, "warm")
    assert "more" not in file.read_text()
    assert "q1" not in file.read_text()


def test_a_refusal_is_a_row_and_equal_to_nothing(tmp_path: Path) -> None:
    class Refusing(Remembering):
        def prepare(self, request: Request) -> Job:
            raise UsageError("no")

    file = tmp_path / "rows"
    played(Refusing(), file, "warm", "cold")
    warm, _ = replay.report(*replay.read(file)).passes
    assert (warm.requests, warm.answered, warm.compared) == (6, 0, 0)
    assert {row.status for row in replay.read(file)[0]} == {400}


def test_a_server_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    asker = Asker("http://127.0.0.1:9/v1")
    with pytest.raises(ServerError, match="cannot be asked"):
        replay.replay(asker, WANTED, "warm", tmp_path / "rows")
    with pytest.raises(UsageError, match="not a server's address"):
        Asker("http://[::1")


def test_a_file_of_something_else_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text('{"schema":"taliesin.replay-row/1","label":"x"}\n')
    with pytest.raises(FormatError, match="line 1"):
        replay.read(file)


def test_scores_in_the_older_form_count_too() -> None:
    answer = replay._Answer()
    scored = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5, "b": -2.0}]}
    assert answer.take({"choices": [{"text": "a", "logprobs": scored}]})
    assert answer.scores == [(-0.5, [("a", -0.5), ("b", -2.0)])]


def test_percentiles_and_a_plot(tmp_path: Path) -> None:
    rows = [
        Row(label="warm", talk=0, turn=n, status=200, prompt=10 + n, first_seconds=float(n + 1))
        for n in range(20)
    ]
    part = Part(label="warm", clients=1, requests=20, seconds=210.0)
    (found,) = replay.report(rows, [part]).passes
    assert (found.first_p50, found.first_p95, found.seconds) == (10.5, 20.0, 210.0)
    pytest.importorskip("matplotlib")
    replay.plot(rows, tmp_path / "plot.svg")
    assert b"<svg" in (tmp_path / "plot.svg").read_bytes()
