from fractions import Fraction
from itertools import product


def solve(drawn=25, quadrants=4):
    # Endpoints on a circle of a few places per quadrant. Given the quadrants, distinct places have every order equally often, as
    # points at random do; so the averages over these places are exact.
    size = 4
    places = range(quadrants * size)
    chords = [(a, b) for a in places for b in places if a // size != b // size]
    groups = {}
    for a, b in chords:
        groups.setdefault((a // size, b // size), []).append((a, b))
    boundaries = range(quadrants // 2)
    meets = Fraction(0)
    for members in groups.values():
        a, b = members[0]
        low, high = sorted((a, b))
        ends = [(k * size - 0.5, (k + quadrants // 2) * size - 0.5) for k in boundaries]
        meets += Fraction(sum((low < s < high) != (low < e < high) for s, e in ends), len(groups))
    crossing = Fraction(0)
    for first, second in product(groups.values(), repeat=2):
        hits = cases = 0
        for (a, b), (c, d) in product(first, second):
            if len({a, b, c, d}) == 4:
                low, high = min(a, b), max(a, b)
                hits += (low < c < high) != (low < d < high)
                cases += 1
        crossing += Fraction(hits, cases * len(groups) ** 2)
    total = quadrants + Fraction(0)  # the diameters alone
    for k in range(drawn):
        total += 1 + meets + k * crossing
    if total.denominator != 1:
        raise ValueError("not an integer")
    return total.numerator


print(solve())
