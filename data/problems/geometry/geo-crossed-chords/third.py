"""The circumcircle of three of the end points: D = abc / (2 K)."""

from fractions import Fraction


def solve(p=6, q=8, r=3):
    # The end points (-p, 0), (q, 0), (0, r)
    sides = [(p + q) ** 2, q * q + r * r, p * p + r * r]
    doubled_area = (p + q) * r
    diameter = Fraction(sides[0] * sides[1] * sides[2], doubled_area**2)
    return diameter.numerator + diameter.denominator


print(solve())
