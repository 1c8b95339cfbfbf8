"""Closed form: the ballot theorem, by reflection."""

from math import comb


def solve(p=8, q=5):
    return comb(p + q - 1, p - 1) - comb(p + q - 1, p)


print(solve())
