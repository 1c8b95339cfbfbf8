"""Iterate in exact fractions."""

from fractions import Fraction


def solve(p=17, q=5, n=2026):
    a = Fraction(p, q)
    for _ in range(n - 1):
        a = (1 + a) / (1 - a)
    return abs(a.numerator) + a.denominator


print(solve())
