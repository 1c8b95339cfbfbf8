"""Coordinates: the centre lies above the middles of both chords."""

from fractions import Fraction


def solve(p=6, q=8, r=3):
    s = Fraction(p * q, r)
    x, y = Fraction(q - p, 2), (r - s) / 2  # the chords run along the axes, through (-p, 0), (q, 0), (0, r), (0, -s)
    diameter = 4 * ((q - x) ** 2 + y * y)
    return diameter.numerator + diameter.denominator


print(solve())
