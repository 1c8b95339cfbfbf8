"""Euler: the centres are d apart with d^2 = R^2 - 2 r R; take d from exact coordinates."""

from fractions import Fraction


def solve(a=13, b=14, c=15):
    # A = (0, 0), B = (c, 0), C = (x, y) with y^2 known; the centres' heights are kept as multiples of y.
    x = Fraction(b * b + c * c - a * a, 2 * c)
    yy = b * b - x * x
    incentre_x = Fraction(b + c - a, 2)
    incentre_h = Fraction(c, a + b + c)  # times y
    circumcentre_h = Fraction(b * b - c * x, 2) / yy  # times y
    square_r = Fraction(c * c, 4) + circumcentre_h**2 * yy
    distance = (incentre_x - Fraction(c, 2)) ** 2 + (incentre_h - circumcentre_h) ** 2 * yy
    product = (square_r - distance) / 2
    return product.numerator + product.denominator


print(solve())
