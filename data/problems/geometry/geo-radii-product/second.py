"""Numerically from the angles, then recognise the fraction."""

from fractions import Fraction
from math import acos, sin, tan


def solve(a=13, b=14, c=15):
    angle = acos((b * b + c * c - a * a) / (2 * b * c))
    inscribed = (b + c - a) / 2 * tan(angle / 2)
    circumscribed = a / (2 * sin(angle))
    product = Fraction(inscribed * circumscribed).limit_denominator(2 * (a + b + c))
    return product.numerator + product.denominator


print(solve())
