"""Closed form: take the forced free chairs away."""

from math import comb


def solve(n=16, r=4, g=2):
    free = n - (r - 1) * g
    return comb(free, r) if free >= 0 else 0


print(solve())
