from fractions import Fraction
from itertools import combinations, permutations
from math import comb


def solve(drawn=25, quadrants=4):
    # Regions = 1 + segments + crossings, by expectation. A chord between quadrants i < j crosses min(j - i, quadrants - j + i)
    # diameters; for two chords the order of the endpoints that share a quadrant is random.
    diameters = quadrants // 2
    pairs = list(combinations(range(quadrants), 2))
    with_diameters = Fraction(sum(min(j - i, quadrants - j + i) for i, j in pairs), len(pairs))
    crossing = cases = 0
    for p in pairs:
        for q in pairs:
            for order in permutations(range(2 + 2)):
                a, b, c, d = zip(p + q, order)
                crossing += (a < c < b) != (a < d < b)
                cases += 1
    regions = 1 + drawn + diameters + (diameters - 1)
    regions += drawn * with_diameters + comb(drawn, 2) * Fraction(crossing, cases)
    if regions.denominator != 1:
        raise ValueError("not an integer")
    return regions.numerator


print(solve())
