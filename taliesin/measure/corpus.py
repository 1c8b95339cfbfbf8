"""Seeded text of any length for experiments: plain reports of invented places, so that nothing in
it can be known beforehand.

Promises that the same seed and index give the same text for ever. Deliberately not interesting: a
number buried in it is the only thing of its kind.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

_ONSETS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "fl",
    "g",
    "gl",
    "h",
    "k",
    "kr",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "sk",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "z",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ei", "ou")
_ENDS = (
    "n",
    "r",
    "l",
    "rd",
    "lt",
    "nd",
    "sk",
    "m",
    "ven",
    "mar",
    "dal",
    "wick",
    "ton",
    "gard",
    "mere",
)
_GOODS = (
    "timber",
    "barley",
    "slate",
    "wool",
    "salt",
    "copper wire",
    "lamp oil",
    "dried peas",
    "rope",
    "bricks",
    "cider",
    "sailcloth",
    "glass",
    "honey",
    "coal",
    "leather",
    "tar",
    "linen",
    "seed potatoes",
    "lime",
)
_PEOPLE = (
    "the harbour master",
    "the schoolteacher",
    "a travelling tinker",
    "the miller's daughter",
    "two surveyors",
    "the ferryman",
    "the night watch",
    "a retired pilot",
    "the baker",
    "the apprentices",
    "the midwife",
    "a company of carters",
    "the clerk",
    "the stonemasons",
    "an old shepherd",
    "the librarian",
)
_DEEDS = (
    "repaired the north wall",
    "counted the empty barrels",
    "moved the benches into the hall",
    "waited for the tide",
    "painted the gate green",
    "argued about the price of hay",
    "measured the well",
    "carried letters over the pass",
    "closed the upper road",
    "planted a row of limes",
    "mended the nets",
    "rang the bell at noon",
    "cleared the ditch",
    "wrote down the names of the guests",
    "borrowed the long ladder",
    "swept the granary",
)
_WEATHER = (
    "under a low sky",
    "in light rain",
    "before the frost came",
    "on a windless morning",
    "while fog lay on the river",
    "in the first warm week",
    "after three dry days",
    "with snow on the hills",
)
_FRAMES = (
    "In {place}, {people} {deed} {weather}.",
    "A load of {goods} reached {place} from {other}, and nobody asked who had ordered it.",
    "{people} {deed}; later they spoke of {goods} and of the road to {other}.",
    "The council of {place} agreed that {goods} should be kept dry, and went home early.",
    "It is said in {other} that {people} once {deed} {weather}.",
    "Between {place} and {other} the path is narrow, so {goods} must go by water.",
    "Nothing else happened in {place} that week, except that {people} {deed}.",
    "{people} had never seen so much {goods}, and {deed} all the same.",
)


def place_name(rng: random.Random) -> str:
    """An invented name of two or three syllables."""
    syllables = rng.choice((2, 2, 3))
    word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables - 1))
    return (word + rng.choice(_ONSETS) + rng.choice(_VOWELS)[:1] + rng.choice(_ENDS)).capitalize()


def sentences(seed: int, index: int) -> Iterator[str]:
    """Sentences about the places of part `index`, without end."""
    rng = random.Random(f"corpus {seed} {index}")
    places = [place_name(rng) for _ in range(6)]
    while True:
        place, other = rng.sample(places, 2)
        text = rng.choice(_FRAMES).format(
            place=place,
            other=other,
            people=rng.choice(_PEOPLE),
            deed=rng.choice(_DEEDS),
            weather=rng.choice(_WEATHER),
            goods=rng.choice(_GOODS),
        )
        yield text[0].upper() + text[1:]


def passage(seed: int, index: int, n_sentences: int) -> str:
    """The first sentences of part `index` as one paragraph."""
    stream = sentences(seed, index)
    return " ".join(next(stream) for _ in range(n_sentences))
