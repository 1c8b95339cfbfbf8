"""Coordinates: the height is only needed squared."""

from fractions import Fraction


def solve(a=13, b=14, c=15):
    # B = (0, 0), C = (a, 0), A = (x, y)
    x = Fraction(a * a + c * c - b * b, 2 * a)
    yy = c * c - x * x
    if yy <= 0:
        raise ValueError("no such triangle")
    from_a = (x - Fraction(a, 2)) ** 2 + yy
    from_b = ((x + a) / 2) ** 2 + yy / 4
    from_c = (x / 2 - a) ** 2 + yy / 4
    total = from_a + from_b + from_c
    return total.numerator + total.denominator


print(solve())
