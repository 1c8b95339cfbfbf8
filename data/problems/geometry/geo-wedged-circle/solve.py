"""Two circles of radii u and v on a line that touch have their feet 2 sqrt(uv) apart: the two small gaps fill the large."""

from fractions import Fraction


def solve(p=4, q=6):
    # 2 p x + 2 q x = 2 p q, where x is the root of the small radius
    radius = Fraction(p * q, p + q) ** 2
    return radius.numerator + radius.denominator


print(solve())
