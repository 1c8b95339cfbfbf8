"""Replay of recorded conversations against an OpenAI-compatible server: seconds to the first token,
prompt tokens reused, and whether each answer is the one of a cold run.

    asker = Asker(url)
    replay(asker, talks, "warm", rows, ...)        # appends a Row for each request to a file
    report(rows)                                   # passes side by side

A *pass* is all requests once, under a label. The pass "cold" sends `cache_prompt: false` with each
request, which llama-server and `taliesin serve` both honour; every other pass lets the server reuse
what it can. A request is known by its conversation and turn, so that a pass that was stopped goes
on where it ended.

Promises: an answer counts as equal only if all its tokens are, or all its log-probabilities to the
last digit that the server printed; one that failed counts as a row with its status and is equal to
nothing. No text is written down: of an answer only its digest and its numbers.
Deliberately does not know: engines, and what a server keeps.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import httpx
from msgspec import Meta

from taliesin.errors import ServerError, UsageError
from taliesin.host import records
from taliesin.host.canonical import canonical_json
from taliesin.host.records import Record
from taliesin.measure import plots
from taliesin.measure.traces import Talk

COLD = "cold"
_WRITTEN = "taliesin_cache_written_bytes_total"
_WAITING = "taliesin_cache_waiting_bytes"
_TOPS = 5  # log-probabilities beside the chosen one
_SETTLE_SECONDS = 30.0

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


class Row(Record, frozen=True, kw_only=True):
    """One request of one pass.

    label: the pass; talk, turn: which request; status: HTTP's, 0 where the answer broke off;
    prompt, cached, generated: tokens as the server counted them, cached null where it does not
    say; first_seconds: to the first token; tokens_sha256: of the answer's tokens; logprobs: of the
    chosen tokens, empty where the server gives none; scores_sha256: of all log-probabilities, the
    best others' too.
    """

    SCHEMA = "taliesin.replay-row/1"

    label: str
    talk: Count
    turn: Count
    status: Count
    prompt: Count = 0
    cached: Count | None = None
    generated: Count = 0
    first_seconds: Seconds = 0.0
    seconds: Seconds = 0.0
    tokens_sha256: str = ""
    logprobs: tuple[float, ...] = ()
    scores_sha256: str = ""


class Part(Record, frozen=True, kw_only=True):
    """A stretch of a pass without a stop. written_bytes: what the server wrote to disk meanwhile,
    null where it does not say.
    """

    SCHEMA = "taliesin.replay-part/1"

    label: str
    clients: Annotated[int, Meta(ge=1)]
    requests: Count
    seconds: Seconds
    written_bytes: Count | None = None


class Asker:
    """How a server is asked.

    Args:
        url: its OpenAI URL, with /v1; key: its API key; model: what requests name.
        completions: send texts to /completions instead of messages, for models without a chat
        template.
        tokens: of each answer.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        model: str = "",
        completions: bool = False,
        tokens: int = 8,
        extra: Mapping[str, Any] | None = None,
        seconds: float = 1800.0,
    ) -> None:
        self.url, self.model, self.completions, self.tokens = (
            url.rstrip("/"),
            model,
            completions,
            tokens,
        )
        self.extra = dict(extra or {})
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            # trust_env=False: a proxy variable must not send prompts elsewhere.
            self._http = httpx.Client(
                base_url=self.url, headers=headers, timeout=seconds, trust_env=False
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise UsageError("not a server's address", got=self.url) from error

    def close(self) -> None:
        self._http.close()

    def ask(self, messages: Sequence[Mapping[str, str]], label: str, talk: int, turn: int) -> Row:
        """One request and its row.

        Raises:
            ServerError: the server cannot be reached.
        """
        body: dict[str, Any] = {
            "max_tokens": self.tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"model": self.model} if self.model else {}),
            **({"cache_prompt": False} if label == COLD else {}),
            **self.extra,
        }
        if self.completions:
            path = "/completions"
            body |= {"prompt": as_text(messages), "logprobs": _TOPS}
        else:
            path = "/chat/completions"
            body |= {"messages": list(messages), "logprobs": True, "top_logprobs": _TOPS}
        answer = _Answer()
        started = time.perf_counter()
        first = 0.0
        try:
            with self._http.stream("POST", path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    return Row(label=label, talk=talk, turn=turn, status=response.status_code)
                for line in response.iter_lines():
                    name, _, data = line.partition(":")
                    if name != "data" or data.strip() == "[DONE]":
                        continue
                    if answer.take(json.loads(data)) and not first:
                        first = time.perf_counter() - started
        except httpx.TransportError as error:
            raise ServerError("the server cannot be asked", got=error, where=self.url) from error
        except ValueError as error:
            raise ServerError(
                "the server sent something that is not JSON", got=error, where=self.url
            ) from error
        seconds = time.perf_counter() - started
        return Row(
            label=label,
            talk=talk,
            turn=turn,
            status=0 if answer.failed else 200,
            prompt=answer.prompt,
            cached=answer.cached,
            generated=answer.generated,
            first_seconds=first or seconds,
            seconds=seconds,
            tokens_sha256=_digest(answer.tokens),
            logprobs=tuple(score for score, _ in answer.scores),
            scores_sha256=_digest(answer.scores) if answer.scores else "",
        )

    def written_bytes(self) -> int | None:
        """What `taliesin serve` has written to its disk, once nothing waits any more; None for
        another server.
        """
        base = self.url.removesuffix("/v1")
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                page = self._http.get(base + "/metrics").text
            except httpx.HTTPError:
                return None
            values = dict(
                line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("taliesin_")
            )
            if _WRITTEN not in values:
                return None
            if not float(values.get(_WAITING, 0)) or time.monotonic() > deadline:
                return int(float(values[_WRITTEN]))
            time.sleep(0.05)


def as_text(messages: Sequence[Mapping[str, str]]) -> str:
    """Messages as one text for a model without a chat template."""
    said = "".join(f"{m['role'].capitalize()}: {m['content']}\n\n" for m in messages)
    return said + "Assistant:"


class _Answer:
    """What the chunks of one answer said."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.scores: list[tuple[float, list[tuple[str, float]]]] = []
        self.prompt = self.generated = 0
        self.cached: int | None = None
        self.failed = False

    def take(self, chunk: dict[str, Any]) -> bool:
        """Whether the chunk held a token."""
        if "error" in chunk:
            self.failed = True
        usage = chunk.get("usage")
        if usage:
            self.prompt, self.generated = usage["prompt_tokens"], usage["completion_tokens"]
            self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        timings = chunk.get("timings")
        if timings and self.cached is None:  # llama-server, where usage does not say
            self.cached = timings.get("cache_n")
        found = False
        for choice in chunk.get("choices") or []:
            text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            scored = choice.get("logprobs") or {}
            if scored.get("content"):
                for step in scored["content"]:
                    tops = [(t["token"], t["logprob"]) for t in step.get("top_logprobs") or []]
                    self.tokens.append(step["token"])
                    self.scores.append((step["logprob"], tops))
            elif scored.get("tokens"):
                for index, token in enumerate(scored["tokens"]):
                    tops = list((scored.get("top_logprobs") or [{}] * (index + 1))[index].items())
                    self.tokens.append(token)
                    self.scores.append((scored["token_logprobs"][index], tops))
            elif text:
                self.tokens.append(text)
            found = found or bool(text or scored.get("content") or scored.get("tokens"))
        return found


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()


# -- a pass ----------------------------------------------------------------------------------------


class Job(NamedTuple):
    talk: int
    turn: int
    messages: list[dict[str, str]]


def jobs(talks: Iterable[Talk], turns: int | None = None) -> list[list[Job]]:
    """The requests of each conversation, the first `turns` of them."""
    return [
        [Job(number, turn, messages) for turn, messages in enumerate(talk.requests())][:turns]
        for number, talk in enumerate(talks)
    ]


def replay(
    asker: Asker,
    talks: Sequence[Sequence[Job]],
    label: str,
    file: Path,
    *,
    clients: int = 1,
    max_seconds: float | None = None,
    on_row: Callable[[Row], None] = lambda _row: None,
) -> bool:
    """Send what of a pass is not in `file` yet, and append it there; whether the pass is whole now.

    A conversation is one client's, in its order; `clients` of them run at once.
    """
    done = {(row.talk, row.turn) for row in read(file)[0] if row.label == label}
    waiting: queue.SimpleQueue[Sequence[Job]] = queue.SimpleQueue()
    for talk in talks:
        left = [job for job in talk if (job.talk, job.turn) not in done]
        if left:
            waiting.put(left)
    if waiting.empty():
        return True
    before = asker.written_bytes()
    started = time.monotonic()
    deadline = None if max_seconds is None else started + max_seconds
    guard = threading.Lock()
    failures: list[BaseException] = []
    counted = 0
    stopped = False

    def play() -> None:
        nonlocal counted, stopped
        with contextlib.suppress(queue.Empty):
            while not failures:
                for job in waiting.get_nowait():
                    if failures or (deadline is not None and time.monotonic() >= deadline):
                        stopped = True
                        return
                    row = asker.ask(job.messages, label, job.talk, job.turn)
                    with guard:
                        _append(file, row)
                        counted += 1
                        on_row(row)

    def guarded() -> None:
        try:
            play()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - started
    after = asker.written_bytes()
    written = None if before is None or after is None else max(after - before, 0)
    _append(
        file,
        Part(
            label=label, clients=clients, requests=counted, seconds=seconds, written_bytes=written
        ),
    )
    if failures:
        raise failures[0]
    return not stopped


def _append(file: Path, record: Row | Part) -> None:
    line = {"schema": record.SCHEMA, **records.plain(record)}
    with file.open("ab") as out:
        out.write(canonical_json(line) + b"\n")


def read(file: Path) -> tuple[list[Row], list[Part]]:
    """What earlier calls of `replay` wrote; nothing if there is no file.

    Raises:
        FormatError: a line that they did not write.
    """
    rows: list[Row] = []
    parts: list[Part] = []
    if not file.exists():
        return rows, parts
    for number, raw in enumerate(file.read_bytes().splitlines(), 1):
        where = f"{file}, line {number}"
        value = records.parse(raw, what="the row", where=where)
        kind = value.pop("schema", None) if isinstance(value, dict) else None
        if kind == Part.SCHEMA:
            parts.append(records.convert(value, Part, what="the row", where=where))
        else:
            rows.append(records.convert(value, Row, what="the row", where=where))
    return rows, parts


# -- what came of it -------------------------------------------------------------------------------


class PassReport(Record, frozen=True, kw_only=True):
    """One pass. first_p50, first_p95: seconds to the first token; equal_tokens, equal_scores: of
    `compared` answers that the reference pass has too; written_per_reused: bytes written for each
    prompt token reused in this pass.
    """

    label: str
    requests: int
    answered: int
    prompt: int
    cached: int
    share: float
    first_p50: float
    first_p95: float
    seconds: float
    compared: int
    equal_tokens: int
    equal_scores: int
    written_bytes: int | None
    written_per_reused: float | None


class ReplayReport(Record, frozen=True, kw_only=True):
    """Passes side by side; reference: the label whose answers the others are compared with, and the
    file it comes from where that is another one.
    """

    SCHEMA = "taliesin.replay/1"

    reference: str
    passes: list[PassReport]


def report(
    rows: Sequence[Row],
    parts: Sequence[Part],
    *,
    reference: Sequence[Row] | None = None,
    reference_name: str = COLD,
) -> ReplayReport:
    """The passes of `rows`, each compared with the rows of the pass `reference_name`, or those in
    `reference`.
    """
    by_label: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_label[row.label].append(row)
    known = {
        (row.talk, row.turn): row
        for row in (reference if reference is not None else by_label.get(reference_name, []))
        if row.status == httpx.codes.OK
    }
    return ReplayReport(
        reference=reference_name,
        passes=[
            _pass_report(label, found, [p for p in parts if p.label == label], known)
            for label, found in by_label.items()
        ],
    )


def _pass_report(
    label: str, rows: Sequence[Row], parts: Sequence[Part], known: Mapping[tuple[int, int], Row]
) -> PassReport:
    good = [row for row in rows if row.status == httpx.codes.OK]
    pairs = [(row, known[row.talk, row.turn]) for row in good if (row.talk, row.turn) in known]
    prompt = sum(row.prompt for row in good)
    cached = sum(row.cached or 0 for row in good)
    firsts = [row.first_seconds for row in good]
    told = [part.written_bytes for part in parts if part.written_bytes is not None]
    written = sum(told) if told else None
    return PassReport(
        label=label,
        requests=len(rows),
        answered=len(good),
        prompt=prompt,
        cached=cached,
        share=cached / prompt if prompt else 0.0,
        first_p50=statistics.median(firsts) if firsts else 0.0,
        first_p95=_quantile(firsts, 0.95),
        seconds=sum(part.seconds for part in parts),
        compared=len(pairs),
        equal_tokens=sum(a.tokens_sha256 == b.tokens_sha256 for a, b in pairs),
        equal_scores=sum(
            bool(a.scores_sha256) and a.scores_sha256 == b.scores_sha256 for a, b in pairs
        ),
        written_bytes=written,
        written_per_reused=written / cached if written is not None and cached else None,
    )


def _quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed; 0 for none."""
    ranked = sorted(values)
    return ranked[min(int(share * len(ranked)), len(ranked) - 1)] if ranked else 0.0


def table_rows(found: ReplayReport) -> Iterator[tuple[str, ...]]:
    """Cells under `HEADERS`."""
    for line in found.passes:
        yield (
            line.label,
            f"{line.answered} of {line.requests}",
            str(line.prompt),
            f"{line.share:.1%}",
            f"{line.first_p50:.3f}",
            f"{line.first_p95:.3f}",
            f"{line.seconds:.1f}",
            f"{line.equal_tokens} of {line.compared}",
            f"{line.equal_scores} of {line.compared}",
            "-" if line.written_per_reused is None else f"{line.written_per_reused:.0f}",
        )


HEADERS = (
    *("pass", "answered", "prompt tokens", "reused", "first token p50 s", "p95 s", "total s"),
    *("equal tokens", "equal log-probs", "bytes written a token reused"),
)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Seconds to the first token over prompt tokens, and their distribution, a colour for each
    pass.

    Raises:
        UsageError: matplotlib is not installed.
    """
    pyplot = plots.pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    labels = list(dict.fromkeys(row.label for row in rows))
    for number, label in enumerate(labels):
        good = [row for row in rows if row.label == label and row.status == httpx.codes.OK]
        colour = f"C{number}"
        left.plot(
            [row.prompt for row in good],
            [row.first_seconds for row in good],
            ".",
            label=label,
            color=colour,
        )
        ranked = sorted(row.first_seconds for row in good)
        right.step(ranked, [(i + 1) / len(ranked) for i in range(len(ranked))], color=colour)
    left.set_xlabel("prompt tokens")
    left.set_ylabel("seconds to the first token")
    left.legend(fontsize=8)
    right.set_xlabel("seconds to the first token")
    right.set_ylabel("share of requests")
    for axes in (left, right):
        axes.grid(True, alpha=0.2)
    left.set_yscale("log")
    right.set_xscale("log")
    # No date: the same rows give the same file.
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
    pyplot.close(figure)
