"""Closed form: 1 + c (x o y) = (1 + c x)(1 + c y)."""

from math import prod


def solve(c=3, n=15, m=1000):
    return (prod(1 + c * k for k in range(1, n + 1)) - 1) // c % m


print(solve())
