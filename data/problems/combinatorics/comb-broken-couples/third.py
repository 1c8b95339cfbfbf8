"""Closed form by inclusion and exclusion over the couples that stay."""

from math import comb, prod


def solve(n=5, k=1):
    def pairings(couples):
        return prod(range(1, 2 * couples, 2))

    return sum((-1) ** (j - k) * comb(j, k) * comb(n, j) * pairings(n - j) for j in range(k, n + 1))


print(solve())
