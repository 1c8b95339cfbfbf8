"""Sum the probabilities that more than k things are taken."""

from fractions import Fraction


def solve(b=25, r=6):
    expected, pebbles_only = Fraction(0), Fraction(1)
    for k in range(b + 1):
        expected += pebbles_only
        pebbles_only *= Fraction(b - k, b + r - k)
    return expected.numerator + expected.denominator


print(solve())
