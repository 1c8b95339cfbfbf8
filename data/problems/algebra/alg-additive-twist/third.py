"""Closed form: f(n) - k n^2 / 2 is additive."""

from fractions import Fraction


def solve(a=3, k=2, x=25):
    return int(Fraction(k * x * x, 2) + (a - Fraction(k, 2)) * x)


print(solve())
