"""Closed form: all routes less those through the crossing."""

from math import comb


def solve(a=6, b=5, p=3, q=2):
    return comb(a + b, a) - comb(p + q, p) * comb(a + b - p - q, a - p)


print(solve())
