"""Condition on the first thing taken, for ever larger boxes."""

from fractions import Fraction


def solve(b=25, r=6):
    expected = Fraction(1)
    for pebbles in range(1, b + 1):
        expected = 1 + Fraction(pebbles, pebbles + r) * expected
    return expected.numerator + expected.denominator


print(solve())
