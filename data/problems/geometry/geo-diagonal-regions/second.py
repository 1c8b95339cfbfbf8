"""Closed form."""

from math import comb


def solve(n=12):
    return comb(n, 4) + comb(n - 1, 2)


print(solve())
