"""Two runs side by side: what was changed between them, and whether the results differ by more than
noise.

Only problems that both runs have with the same text are compared, pair by pair. Deliberately does
not know why they differ: where several settings changed at once, the list of changes says so and no
cause is named.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from galahad.measure.stats import PairedDifference, PairedOutcomes
from galahad.solve.summary import ProblemResult, Summary
from taliesin.errors import UsageError
from taliesin.host import console, records

LEVEL = 0.05
_OF_THE_INPUTS = (
    "suite",
    "engine",
    "settings",
    "graft",
    "prompts_sha256",
    "router",
    "rule",
    "version",
)


@dataclass(frozen=True)
class Comparison:
    """`changes` are (field, before, after); `gained` and `lost` are ids that only one run got
    right. Tokens are output tokens.
    """

    before: str
    after: str
    changes: list[tuple[str, str, str]]
    outcomes: PairedOutcomes
    tokens: PairedDifference
    seconds: PairedDifference
    gained: list[str]
    lost: list[str]
    n_unpaired: int

    @property
    def verdict(self) -> str:
        """In one sentence, what the paired test allows to say."""
        found = self.outcomes
        if found.p <= LEVEL:
            better = "more" if found.only_second > found.only_first else "fewer"
            return (
                f"the second run gets {better} problems right than noise explains (p = "
                f"{found.p:.3g}, level {LEVEL})"
            )
        if found.smallest_p > LEVEL:
            n = found.only_first + found.only_second
            return (
                f"undecided: {n} problems differ, too few for any outcome to reach the level "
                f"{LEVEL}"
            )
        return f"no difference beyond noise (p = {found.p:.3g}, level {LEVEL})"

    def as_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        for name in ("outcomes", "tokens", "seconds"):
            fields[name] = records.plain(getattr(self, name))
        return {
            **fields,
            "changes": [list(change) for change in self.changes],
            "verdict": self.verdict,
        }


def compare(before: Summary, after: Summary, seed: int = 0) -> Comparison:
    """Two runs over the same problems. `seed` is the bootstrap's.

    Raises:
        UsageError: they have no problem in common.
    """
    ours, theirs = ({r.id: r for r in summary.results} for summary in (before, after))
    texts = [summary.run.header.suite.problems for summary in (before, after)]
    ids = [i for i in ours if i in theirs and texts[0][i] == texts[1][i]]
    if not ids:
        raise UsageError(
            "the runs have no problem in common", where=f"{before.run.path}, {after.run.path}"
        )
    pairs: list[tuple[ProblemResult, ProblemResult]] = [(ours[i], theirs[i]) for i in ids]
    right = [(a.grade == "right", b.grade == "right") for a, b in pairs]
    return Comparison(
        str(before.run.path),
        str(after.run.path),
        changes(records.plain(before.run.header), records.plain(after.run.header)),
        PairedOutcomes.of([a for a, _ in right], [b for _, b in right]),
        PairedDifference.of(
            [a.tokens_out for a, _ in pairs], [b.tokens_out for _, b in pairs], seed
        ),
        PairedDifference.of([a.seconds for a, _ in pairs], [b.seconds for _, b in pairs], seed),
        [i for i, (a, b) in zip(ids, right, strict=True) if b and not a],
        [i for i, (a, b) in zip(ids, right, strict=True) if a and not b],
        len(ours) + len(theirs) - 2 * len(ids),
    )


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Fields of two run headers that differ, with both values, shortened."""
    found = []
    for name in _OF_THE_INPUTS:
        a, b = before.get(name), after.get(name)
        inner = sorted(set(a) | set(b)) if isinstance(a, dict) and isinstance(b, dict) else [None]
        for key in inner:
            x, y = (a, b) if key is None else (a.get(key), b.get(key))  # type: ignore[union-attr]
            if x != y and key != "problems":
                found.append((name if key is None else f"{name}.{key}", _short(x), _short(y)))
    return found


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def markdown(comparison: Comparison) -> str:
    """The comparison as Markdown, for a reader."""
    c = comparison
    lines = [
        f"# {c.before} against {c.after}",
        "",
        f"**{c.verdict[0].upper()}{c.verdict[1:]}.**",
        "",
    ]
    lines.append(f"- right: {c.outcomes}")
    lines.append(f"- output tokens a problem, second less first: {c.tokens}")
    lines.append(f"- seconds a problem, second less first: {c.seconds}")
    lines.append(f"- right only in the first: {', '.join(c.lost) or 'none'}")
    lines.append(f"- right only in the second: {', '.join(c.gained) or 'none'}")
    if c.n_unpaired:
        lines.append(
            f"- {c.n_unpaired} results of one run have no partner in the other and are left out"
        )
    lines += [
        "",
        console.markdown_table(["changed", "first", "second"], c.changes or [("nothing", "", "")]),
    ]
    return "\n".join(lines)
