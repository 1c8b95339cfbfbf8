"""Only the own position is exact: a graft moved by k positions, and what a model's own arithmetic
does when it moves (claim C3).

Three runs of the same block and the same queries: *here*, a fresh prefill at position 0; *there*, a
fresh prefill at position k; *moved*, the graft of *here* with every position shifted by k
(llama.cpp re-rotates the stored K). RoPE is relative, so in exact arithmetic all three agree. In
floating point they do not:

* KL(there || moved) is what moving a graft costs;
* KL(here || there), two fresh prefills, is the control: how much the model's own rounding changes
  with position alone.

If both are of one size, the residual belongs to the model's floating point and not to the graft.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from taliesin.engine import graft, llama
from taliesin.engine.embedded import Engine, settings_of
from taliesin.errors import UsageError
from taliesin.host.records import plain
from taliesin.prove.equivalence import Logits, Statistics, compare, statistics
from taliesin.prove.verify import queries

if TYPE_CHECKING:
    from taliesin.store.blockfile import BlockFile


@dataclass(frozen=True)
class Shifted:
    """One distance k. `bit_equal` counts the vectors of the moved graft that equal the fresh ones
    there, of `moved.n`.
    """

    by: int
    moved: Statistics  # KL(there || moved)
    control: Statistics  # KL(here || there)
    bit_equal: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "by": self.by,
            "moved": plain(self.moved),
            "control": plain(self.control),
            "bit_equal": self.bit_equal,
        }

    @property
    def statement(self) -> str:
        """What the two medians show, in one sentence."""
        moved, control = self.moved.kl_median, self.control.kl_median
        if moved == 0.0:
            return f"moved by {self.by}: the median KL is 0"
        if control == 0.0:
            return (
                f"moved by {self.by}: median KL {moved:.2e}, while two fresh prefills agree: "
                "the residual is the move's"
            )
        return (
            f"moved by {self.by}: median KL {moved:.2e}, two fresh prefills at the two "
            f"positions {control:.2e} "
            f"(ratio {moved / control:.2f}): "
            + (
                "of the size of the model's own rounding"
                if moved <= 2 * control
                else "more than the model's own rounding explains"
            )
        )


def shift(
    engine: Engine,
    block: BlockFile,
    distances: tuple[int, ...],
    n_queries: int = 10,
    n_steps: int = 4,
    on_query: Callable[[], None] = lambda: None,
) -> list[Shifted]:
    """Measure the three runs for each distance, over `n_queries` queries of 7 tokens and `n_steps`
    forced tokens each.

    The steps after the query are teacher-forced with the greedy tokens of *here*, so that all runs
    see the same tokens.

    Raises:
        UsageError: a distance or count that is not positive.
    """
    if not distances or min(distances) < 1 or n_queries < 1 or n_steps < 0:
        raise UsageError(
            "distances and queries must be at least 1", got=f"{distances}, {n_queries} queries"
        )
    tokens = block.header.tokens.tolist()
    asked = [queries(engine.model.n_vocab, (7,), seed)[0] for seed in range(n_queries)]
    settings = settings_of(block.header.recipe, block.path, {})
    room = len(tokens) + 7 + n_steps + max(distances)
    settings = replace(settings, n_ctx=room)
    engine.drop_context()
    results = []
    with llama.Context(engine.model, settings) as context:
        prepared = graft.prepare(context, block, verify=True)
        here: list[list[Logits]] = []
        forced: list[list[int]] = []
        for query in asked:
            # equal to a fresh prefill bit for bit: that is what `verify` proves
            graft.apply(context, prepared)
            run = list(llama.greedy(context, query, len(tokens), n_steps))
            here.append(run)
            forced.append([int(v.argmax()) for v in run[:-1]])
        for by in distances:
            context.clear()
            context.decode(tokens, by, logits=False)
            there_state = context.state()
            there, moved = [], []
            for query, follow in zip(asked, forced, strict=True):
                # plain restore of the state at k: without window layers exact; with them the fresh
                # run is repeated
                if context.ring:
                    context.clear()
                    context.decode(tokens, by, logits=False)
                else:
                    context.clear()
                    context.restore(there_state)
                there.append(_forced(context, query, follow, len(tokens) + by))
                graft.apply(context, prepared)
                context.shift(by)
                moved.append(_forced(context, query, follow, len(tokens) + by))
                on_query()
            pairs = [
                compare(a, b)
                for t, m in zip(there, moved, strict=True)
                for a, b in zip(t, m, strict=True)
            ]
            control = [
                compare(a, b)
                for h, t in zip(here, there, strict=True)
                for a, b in zip(h, t, strict=True)
            ]
            results.append(
                Shifted(by, statistics(pairs), statistics(control), sum(p.equal for p in pairs))
            )
    return results


def _forced(
    context: llama.Context, query: list[int], follow: list[int], position: int
) -> list[Logits]:
    """Logits after the query and after each of the given tokens."""
    vectors = []
    pending = query
    for token in [*follow, None]:
        logits = context.decode(pending, position)
        assert logits is not None
        vectors.append(logits)
        position += len(pending)
        pending = [] if token is None else [token]
    return vectors
