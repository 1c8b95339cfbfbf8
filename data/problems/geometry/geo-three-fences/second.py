"""Closed form: Routh's theorem."""

from fractions import Fraction


def solve(x=2, y=2, z=3):
    area = Fraction((x * y * z - 1) ** 2, (x * y + y + 1) * (y * z + z + 1) * (z * x + x + 1))
    return area.numerator + area.denominator


print(solve())
