"""Bisect the radius by coordinates, then recognise the fraction."""

from fractions import Fraction
from math import sqrt


def solve(p=4, q=6):
    large, small = p * p, q * q
    distance = sqrt((large + small) ** 2 - (large - small) ** 2)
    low, high = 0.0, float(min(large, small))
    for _ in range(200):
        r = (low + high) / 2
        reach = sqrt((large + r) ** 2 - (large - r) ** 2) + sqrt((small + r) ** 2 - (small - r) ** 2)
        if reach < distance:
            low = r
        else:
            high = r
    radius = Fraction(low).limit_denominator((p + q) ** 2)
    return radius.numerator + radius.denominator


print(solve())
