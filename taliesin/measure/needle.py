"""Numbers buried in a corpus far longer than any context, each read back from the one block that
holds it.

A seeded corpus of `n_tokens` is cut into `n_blocks` blocks of one length; at each depth (a token
offset in the whole corpus) a sentence with a random number of five digits is put between two
others. Every block is prefilled once and stored; blocks that are already in the library with the
same tokens are used as they are, so a run can be stopped and started again. Then each number is
asked for: the question is routed by its words, the one block grafted, the answer generated under a
grammar of one to five digits. A number read is right only if it is equal.

The claim under test is that what a read costs does not depend on how deep the number lies: seconds
over depth are fitted with a line, and its slope is given with its 95 % interval.
"""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from taliesin.ask.router import Router
from taliesin.engine import prompt
from taliesin.engine.backend import Grafted
from taliesin.engine.embedded import Engine, InContext
from taliesin.engine.llama import Sampling
from taliesin.engine.save import save_tokens
from taliesin.engine.tiers import Tier, Tiers
from taliesin.errors import StoreMissing, UsageError
from taliesin.measure import corpus
from taliesin.store.library import Library

DIGITS = 5
GRAMMAR = f"root ::= [0-9]{{1,{DIGITS}}}"
_SPARE = 96  # tokens kept free in the context for the question and the answer
_SHORTEST = 64  # tokens of a block


class Needle(NamedTuple):
    """A number and where it lies. `depth` is the token offset in the corpus that was asked for."""

    depth: int
    block: int
    vault: str
    number: str

    @property
    def sentence(self) -> str:
        return f"The code of the {self.vault} vault is {self.number}."

    @property
    def question(self) -> str:
        return f"What is the code of the {self.vault} vault?"


class Read(NamedTuple):
    """One question: what was routed, read and paid. Seconds are wall time: routing, graft, then
    question and answer.
    """

    depth: int
    block: int
    routed: str | None
    expected: str
    answer: str
    correct: bool
    tier: Tier | None
    route_seconds: float
    graft_seconds: float
    answer_seconds: float

    @property
    def seconds(self) -> float:
        return self.route_seconds + self.graft_seconds + self.answer_seconds


@dataclass(frozen=True)
class Slope:
    """A line fitted to seconds over depth: seconds per million tokens, with its 95 % interval (None
    for fewer than 3 reads).
    """

    seconds_per_million: float
    low: float
    high: float

    @property
    def grows(self) -> bool:
        """Whether the interval lies above zero."""
        return self.low > 0


@dataclass(frozen=True)
class NeedleReport:
    """A whole run. Memory in bytes: the process's peak, and the GPU's in use at the end (None
    without one).
    """

    n_tokens: int
    n_blocks: int
    block_tokens: int
    n_ctx_train: int
    library_bytes: int
    saved_blocks: int
    reused_blocks: int
    save_seconds: float
    reads: list[Read]
    slope: Slope | None
    peak_bytes: int
    gpu_bytes: int | None

    @property
    def n_correct(self) -> int:
        return sum(read.correct for read in self.reads)

    def as_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        fields["reads"] = [{**read._asdict(), "seconds": read.seconds} for read in self.reads]
        return {**fields, "n_correct": self.n_correct}


@dataclass
class Hunt:
    """One corpus and its library.

    Args:
        n_tokens: of the corpus; blocks have n_tokens // n_blocks of them, chat template included.
        depths: how many numbers, spread evenly from the first token to the last.

    Raises:
        UsageError: a block would be too short, or longer than the model's context.
    """

    engine: Engine
    library: Library
    n_tokens: int = 24_000
    n_blocks: int = 12
    depths: int = 7
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_blocks < 1 or self.depths < 1:
            raise UsageError(
                "blocks and depths must be at least one", got=f"{self.n_blocks}, {self.depths}"
            )
        self.block_tokens = self.n_tokens // self.n_blocks
        self._shape = prompt.frame(self.engine.model)
        longest = self.engine.model.n_ctx_train - _SPARE
        shortest = _SHORTEST + len(self._shape.before) + len(self._shape.between)
        if not shortest <= self.block_tokens <= longest:
            raise UsageError(
                "the blocks do not fit the model",
                expected=f"{shortest}..{longest} tokens in a block",
                got=f"{self.n_tokens} tokens in {self.n_blocks} blocks: {self.block_tokens} each",
                hint=f"--blocks {-(-self.n_tokens // longest)} or more",
            )
        self.needles = self._hide()

    def _hide(self) -> list[Needle]:
        rng = random.Random(f"needles {self.seed}")
        last = self.n_tokens - 1
        depths = (
            [round(i * last / (self.depths - 1)) for i in range(self.depths)]
            if self.depths > 1
            else [0]
        )
        found: dict[str, Needle] = {}
        for depth in depths:
            vault = next(
                name for name in iter(lambda: corpus.place_name(rng), "") if name not in found
            )
            block = min(depth // self.block_tokens, self.n_blocks - 1)
            found[vault] = Needle(
                depth, block, vault, str(rng.randrange(10 ** (DIGITS - 1), 10**DIGITS))
            )
        return list(found.values())

    def name(self, block: int) -> str:
        return f"needle-{self.seed}-{self.n_tokens}-{block + 1:04}"

    def tokens(self, block: int) -> list[int]:
        """Ids of a block, chat template's beginning included: exactly `block_tokens` of them."""
        model, shape = self.engine.model, self._shape
        room = self.block_tokens - len(shape.before) - len(shape.between)
        here = sorted(n for n in self.needles if n.block == block)
        pieces = [model.tokenize(" " + needle.sentence, special=False) for needle in here]
        body: list[int] = []
        stream = corpus.sentences(self.seed, block)
        room_left = room - sum(map(len, pieces))
        waiting = list(zip(here, pieces, strict=True))
        while room_left > 0 or waiting:
            # a sentence that starts at or after the depth asked for is put behind the needle; the
            # last ones go to the end
            if waiting and (
                waiting[0][0].depth - block * self.block_tokens <= len(body) or room_left <= 0
            ):
                body += waiting.pop(0)[1]
                continue
            ids = model.tokenize(" " + next(stream), special=False)[:room_left]
            body += ids
            room_left -= len(ids)
        return [*shape.before, *body, *shape.between]

    def save(
        self, on_block: Callable[[bool, int], None] = lambda _reused, _n_tokens: None
    ) -> tuple[int, int]:
        """Store the blocks that are not there yet: how many were saved, how many reused. `on_block`
        is told of each.
        """
        saved = reused = 0
        for block in range(self.n_blocks):
            ids, name = self.tokens(block), self.name(block)
            there = self._is_there(name, ids)
            if not there:
                head = len(self._shape.before)
                text = self.engine.model.text(ids[head : len(ids) - len(self._shape.between)])
                save_tokens(
                    self.engine,
                    self.library,
                    ids,
                    name,
                    align="whole",
                    shape=self._shape,
                    text=text,
                    replace_existing=True,
                )
            saved, reused = saved + (not there), reused + there
            on_block(there, len(ids))
        return saved, reused

    def _is_there(self, name: str, ids: list[int]) -> bool:
        try:
            with self.library.open(name) as block:
                recipe = block.header.recipe
                return bool(
                    recipe.get("model_sha256") == self.engine.model_sha256
                    and recipe.get("n_threads") == self.engine.settings.n_threads
                    and np.array_equal(block.header.tokens, ids)
                )
        except StoreMissing:
            return False

    def query(self, grafted: Grafted[InContext], needle: Needle) -> list[int]:
        """Ids after the block: in a chat the question and the answer up to its number, else only
        that beginning of an answer.
        """
        asked = grafted.query(needle.question) if self._shape.kind == "chat" else []
        lead = needle.sentence.removesuffix(f"{needle.number}.")
        return [
            *asked,
            *self.engine.model.tokenize(lead if asked else f"\n\n{lead}", special=False),
        ]

    def read(self, tiers: Tiers) -> Iterator[Read]:
        """Ask for every number in order of depth."""
        router = Router.of_library(self.library)
        for needle in self.needles:
            route = router.route(needle.question)
            answer, tier, routed = "", None, None
            graft_seconds = answer_seconds = 0.0
            if route.block is not None:
                hit = tiers.graft(route.block.block_id)
                tier, routed, graft_seconds = hit.tier, route.block.name, hit.seconds
                started = time.perf_counter()
                answer = self._answer(hit.grafted, needle)
                answer_seconds = time.perf_counter() - started
            yield Read(
                needle.depth,
                needle.block,
                routed,
                needle.number,
                answer,
                answer == needle.number,
                tier,
                route.seconds,
                graft_seconds,
                answer_seconds,
            )

    def _answer(self, grafted: Grafted[InContext], needle: Needle) -> str:
        query = self.query(grafted, needle)
        grafted.prefill(query)
        position, stop = len(grafted.header.tokens) + len(query), frozenset(grafted.header.stop)
        steps = self.engine.continue_from(
            grafted.place.context, position, DIGITS, Sampling(grammar=GRAMMAR), stop
        )
        return "".join(step.text for step in steps)

    def report(
        self, reads: list[Read], saved: int, reused: int, save_seconds: float
    ) -> NeedleReport:
        """What `save` and `read` gave, with the slope and the memory in use now."""
        names = {self.name(block) for block in range(self.n_blocks)}
        lines = [line for line in self.library.list() if line.name in names]
        return NeedleReport(
            self.n_tokens,
            self.n_blocks,
            self.block_tokens,
            self.engine.model.n_ctx_train,
            sum(line.file_bytes for line in lines),
            saved,
            reused,
            save_seconds,
            reads,
            slope([read.depth for read in reads], [read.seconds for read in reads]),
            peak_bytes(),
            gpu_bytes() if self.engine.gpu_layers else None,
        )


def slope(depths: list[int], seconds: list[float]) -> Slope | None:
    """Least squares of seconds over depth, with the 95 % interval of Student's t."""
    if len(set(depths)) < 3:
        return None
    from scipy import stats

    fit = stats.linregress(np.asarray(depths) / 1e6, np.asarray(seconds))
    half = float(stats.t.ppf(0.975, len(depths) - 2)) * float(fit.stderr)
    return Slope(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half)


def peak_bytes() -> int:
    """The most memory this process has had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def gpu_bytes() -> int | None:
    """Memory in use on the first GPU, by every process; None where the driver does not say."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    except Exception:  # no library, no driver, no device: nothing to report
        return None
