"""Apollonius for each median."""

from fractions import Fraction


def solve(a=13, b=14, c=15):
    total = sum(Fraction(2 * u * u + 2 * v * v - w * w, 4) for u, v, w in ((b, c, a), (c, a, b), (a, b, c)))
    return total.numerator + total.denominator


print(solve())
