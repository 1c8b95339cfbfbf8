"""One block for a question, or none: lexical scoring over the blocks' texts and titles, no model
needed.

Two numbers decide. *BM25* (bm25s, Lucene's form) ranks the blocks. *Coverage* of the best one says
whether it is about the question
at all: the share of the question's terms, weighted by how rare they are, that the block contains.
Coverage lies between 0 and 1 and does not grow with the library, so one threshold serves libraries
of any size; below it the router abstains. The threshold was calibrated on questions with and
without a block (`benchmarks/router_calibration.py`, data and results kept).

Deliberately does not know: meaning. A question that shares no words with its block is not routed;
`choose` lets a model decide among the top few, by how probable the question's own tokens are after
each block.

A route is advice. What a block may be applied to is decided by its tokens (`Grafted.remainder`).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import tempfile
import time
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from taliesin.errors import ToolkitError, UsageError
from taliesin.host.places import cache_dir, data_dir

if TYPE_CHECKING:
    from taliesin.engine.backend import Grafted
    from taliesin.engine.embedded import InContext
    from taliesin.engine.tiers import Tiers
    from taliesin.store.library import Library

THRESHOLD = 0.47
"""Least coverage of a route: calibrated, see benchmarks/results/router_calibration.md."""

_TOP = 5
_VERSION = 1  # of the cached index; another one is built again
_WORD = re.compile(r"\w+")
_POSSESSIVE = re.compile(r"['’]s\b")
# Scripts written without spaces between words: their words cannot be cut at spaces, so pairs of
# characters stand for them.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+"
)
_MOST_QUERY_TERMS = 4096


@cache
def function_words() -> frozenset[str]:
    """Words of a question rather than of its subject, stemmed and not: a block need not contain
    them to be about it.
    """
    words = (data_dir() / "router" / "function_words.txt").read_text(encoding="utf-8").split()
    return frozenset(words) | frozenset(map(_stem, words))


class Document(NamedTuple):
    """What the router reads of a block. `name` is how the library calls it (its id where it has no
    name).
    """

    block_id: str
    name: str
    title: str
    text: str


class Candidate(NamedTuple):
    """A block as the router sees it for one question."""

    block_id: str
    name: str
    title: str
    score: float  # BM25
    coverage: float  # 0 to 1
    missing: tuple[str, ...]  # terms of the question that the block lacks, rarest first
    # mean per token of the question after the block, where a model was asked
    log_likelihood: float | None = None


@dataclass(frozen=True)
class Route:
    """The router's answer: `block` is the one to graft, or None, and `reason` says why."""

    query: str
    block: Candidate | None
    reason: str
    candidates: tuple[Candidate, ...]
    threshold: float
    n_blocks: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        fields = asdict(self)
        fields["block"] = self.block._asdict() if self.block else None
        fields["candidates"] = [c._asdict() for c in self.candidates]
        return fields


def terms(text: str) -> list[str]:
    """What of a text is compared: words in one form and without accents' variants, numbers, pairs
    of characters of unspaced scripts.

    English possessives, plurals and the endings -ed and -ing go; function words stay (the query
    drops them).
    """
    found: list[str] = []
    plain = _POSSESSIVE.sub("", unicodedata.normalize("NFKC", text).casefold())
    for word in _WORD.findall(plain):
        start = 0
        for run in _UNSPACED.finditer(word):
            if run.start() > start:
                found.append(_stem(word[start : run.start()]))
            characters = run.group()
            found += [characters[i : i + 2] for i in range(max(1, len(characters) - 1))]
            start = run.end()
        if start < len(word):
            found.append(_stem(word[start:]))
    return found


def _stem(word: str) -> str:
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    if word.endswith("ies"):
        word = word[:-3] + "y"
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    if len(word) > 5 and word.endswith("ing"):
        word = word[:-3]
    elif len(word) > 4 and word.endswith("ed"):
        word = word[:-2]
    # bake, baked and baking meet: the e goes everywhere
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def _bm25s() -> Any:
    """bm25s without JAX. With it, importing bm25s claims three quarters of a GPU, for a selection
    that is not used here.
    """
    there = sys.modules.get("jax")
    sys.modules["jax"] = None  # type: ignore[assignment]
    try:
        import bm25s
    finally:
        if there is None:
            del sys.modules["jax"]
        else:
            sys.modules["jax"] = there
    return bm25s


class Router:
    """An index over documents. Build it from documents (`Router(documents)`) or from a library
    (`of_library`).
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = list(documents)
        self._index: Any = _bm25s().BM25(method="lucene")
        if self._documents:
            corpus = [terms(f"{d.title}\n{d.text}") or [""] for d in self._documents]
            self._index.index(corpus, show_progress=False)

    # -- from a library, with a cache --------------------------------------------------------------

    @classmethod
    def of_library(cls, library: Library, *, cached: bool = True) -> Router:
        """The router of a library's blocks; built again only when blocks or names changed.

        A block whose text is not stored is found by its title alone; one that does not open is left
        out. The cache is in the user's cache folder and can be removed at any time.
        """
        lines = [line for line in library.list() if not line.problem]
        state = [[line.id, line.name, line.title] for line in lines]
        folder = (
            cache_dir()
            / "router"
            / hashlib.sha256(str(library.path).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        )
        key = hashlib.sha256(json.dumps([_VERSION, state]).encode()).hexdigest()
        if cached and (known := cls._load(folder / key)):
            return known
        documents, seen = [], set()
        for line in lines:
            if line.id in seen:  # one block under several names is one choice
                continue
            seen.add(line.id)
            with suppress(ToolkitError), library.open(line.id) as block:
                documents.append(
                    Document(line.id, line.name or line.id, line.title, block.header.text)
                )
        router = cls(documents)
        if cached:
            router._save(folder / key)
        return router

    @classmethod
    def _load(cls, path: Path) -> Router | None:
        bm25s = _bm25s()
        try:
            saved = json.loads((path / "documents.json").read_text(encoding="utf-8"))
            router = cls.__new__(cls)
            router._documents = [
                Document(block_id, name, title, "") for block_id, name, title in saved
            ]
            router._index = (
                bm25s.BM25.load(path, mmap=False, show_progress=False) if saved else bm25s.BM25()
            )
        except Exception:  # a cache: whatever is wrong with it, the index is built again
            return None
        return router

    def _save(self, path: Path) -> None:
        """Keep the index at `path` and nothing older beside it. A cache that cannot be written is
        no error.
        """
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=path.parent))
            try:
                rows = [[d.block_id, d.name, d.title] for d in self._documents]
                if rows:
                    self._index.save(draft, show_progress=False)
                (draft / "documents.json").write_text(json.dumps(rows), encoding="utf-8")
                for old in path.parent.iterdir():
                    if old not in (draft, path):
                        shutil.rmtree(old, ignore_errors=True)
                draft.rename(path)
            finally:
                shutil.rmtree(draft, ignore_errors=True)

    # -- routing -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._documents)

    def route(self, query: str, *, threshold: float = THRESHOLD, top: int = _TOP) -> Route:
        """The one block for a question, or none.

        None: an empty library, a question without terms, a best block under the threshold, or two
        that fit equally well.

        Raises:
            UsageError: the threshold is not within 0 and 1.
        """
        if not 0 <= threshold <= 1:
            raise UsageError("the threshold is out of range", expected="0..1", got=threshold)
        started = time.perf_counter()
        candidates = self._candidates(query, top)
        block, reason = _decide(candidates, threshold, len(self))
        return Route(
            query, block, reason, candidates, threshold, len(self), time.perf_counter() - started
        )

    def _candidates(self, query: str, top: int) -> tuple[Candidate, ...]:
        every = list(dict.fromkeys(terms(query)))[:_MOST_QUERY_TERMS]
        wanted = [t for t in every if t not in function_words()]
        n = len(self._documents)
        if not n or not wanted:
            return ()
        vocabulary, starts = self._index.vocab_dict, self._index.scores["indptr"]
        columns = {t: vocabulary[t] for t in wanted if t in vocabulary and t}
        if not columns:
            return ()
        frequency = {t: int(starts[c + 1] - starts[c]) for t, c in columns.items()}
        weights = {t: _rarity(n, frequency.get(t, 0)) for t in wanted}
        scores: npt.NDArray[np.float32] = self._index.get_scores(list(columns))
        covered = np.zeros(n)
        for term, column in columns.items():
            covered[self._index.scores["indices"][starts[column] : starts[column + 1]]] += weights[
                term
            ]
        covered /= sum(weights.values())
        nearest = np.argpartition(-scores, top - 1)[:top] if n > top else np.arange(n)
        # Ties go to the better covered, then to the earlier one: the order never depends on chance.
        best = sorted(nearest.tolist(), key=lambda i: (-float(scores[i]), -float(covered[i]), i))
        rare_first = sorted(wanted, key=lambda t: -weights[t])
        return tuple(
            self._candidate(i, float(scores[i]), float(covered[i]), rare_first, columns)
            for i in best
            if scores[i] > 0
        )

    def _candidate(
        self,
        index: int,
        score: float,
        coverage: float,
        rare_first: list[str],
        columns: dict[str, int],
    ) -> Candidate:
        document, starts, indices = (
            self._documents[index],
            self._index.scores["indptr"],
            self._index.scores["indices"],
        )

        def lacks(term: str) -> bool:
            column = columns.get(term)
            return column is None or index not in indices[starts[column] : starts[column + 1]]

        missing = tuple(t for t in rare_first if lacks(t))[:8]
        return Candidate(document.block_id, document.name, document.title, score, coverage, missing)


def _rarity(n_documents: int, n_containing: int) -> float:
    """Inverse document frequency as in BM25 (Lucene): ln(1 + (N - n + 1/2) / (n + 1/2)); largest
    for a term in no document.
    """
    return float(np.log1p((n_documents - n_containing + 0.5) / (n_containing + 0.5)))


def _decide(
    candidates: Sequence[Candidate], threshold: float, n_blocks: int
) -> tuple[Candidate | None, str]:
    if not n_blocks:
        return None, "the library has no blocks"
    if not candidates:
        return None, "no block contains a word of the question (function words aside)"
    best = candidates[0]
    if best.coverage < threshold:
        lacking = ", ".join(best.missing[:4])
        return (
            None,
            f"the best block covers {best.coverage:.2f} of the question, under {threshold:.2f}; "
            f"it lacks: {lacking}",
        )
    if (
        len(candidates) > 1
        and candidates[1].score == best.score
        and candidates[1].coverage == best.coverage
    ):
        return None, f"two blocks fit equally well: {best.name} and {candidates[1].name}"
    return best, f"covers {best.coverage:.2f} of the question"


def choose(route: Route, tiers: Tiers, *, top: int = 3) -> Route:
    """`route` with a model's choice among its top few candidates that reach the threshold.

    Each is grafted, and the one after which the question's own tokens are the most probable (mean
    log-likelihood of all but the first) is taken. Where the words alone abstained, no model is
    asked.
    """
    able = [c for c in route.candidates[:top] if c.coverage >= route.threshold]
    started = time.perf_counter()
    if not able:
        return route
    judged = []
    for candidate in able:
        grafted = tiers.graft(candidate.block_id).grafted
        judged.append(candidate._replace(log_likelihood=log_likelihood(grafted, route.query)))
    judged.sort(key=lambda c: -(c.log_likelihood or 0.0))
    rest = [c for c in route.candidates if c.block_id not in {j.block_id for j in judged}]
    seconds = route.seconds + time.perf_counter() - started
    reason = (
        f"the model's choice of {len(judged)}: question at {judged[0].log_likelihood:.2f} "
        "nats a token"
    )
    return Route(
        route.query, judged[0], reason, (*judged, *rest), route.threshold, route.n_blocks, seconds
    )


def log_likelihood(grafted: Grafted[InContext], question: str) -> float:
    """Mean natural-log probability of the question's tokens after the block, without the first (0
    for a question of one).
    """
    ids = grafted.model.tokenize(question, special=False)
    lead = [*grafted.header.tail.tolist(), *ids[:1]]
    logits, position = grafted.prefill(lead), len(grafted.header.tokens) + len(lead)
    total = 0.0
    for offset, token in enumerate(ids[1:]):
        total += float(logits[token] - np.logaddexp.reduce(logits.astype(np.float64)))
        if offset + 2 < len(ids):
            following = grafted.place.context.decode([token], position + offset)
            assert following is not None
            logits = following
    return total / max(1, len(ids) - 1)
