"""Descartes' theorem for curvatures, with the line as a circle of curvature 0, in exact fractions."""

from fractions import Fraction


def solve(p=4, q=6):
    first, second = Fraction(1, p * p), Fraction(1, q * q)
    root = Fraction(1, p * q)  # of first * second, the only product that is not 0
    curvature = first + second + 2 * root
    radius = 1 / curvature
    return radius.numerator + radius.denominator


print(solve())
