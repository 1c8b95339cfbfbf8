"""Closed form by inclusion and exclusion: mark j of the occurrences, which never overlap."""

from math import comb


def solve(q=3, n=7, k=2):
    return sum((-1) ** (j - k) * comb(j, k) * comb(n - j, j) * q ** (n - 2 * j) for j in range(k, n // 2 + 1))


print(solve())
