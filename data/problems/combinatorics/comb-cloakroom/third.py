"""Closed form by inclusion and exclusion."""

from math import comb, factorial


def solve(n=6, k=2):
    return sum((-1) ** (j - k) * comb(j, k) * comb(n, j) * factorial(n - j) for j in range(k, n + 1))


print(solve())
