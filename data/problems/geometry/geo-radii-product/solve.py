"""r = K / s and R = abc / (4 K): the area cancels."""

from fractions import Fraction


def solve(a=13, b=14, c=15):
    if a + b <= c or b + c <= a or c + a <= b:
        raise ValueError("no such triangle")
    product = Fraction(a * b * c, 2 * (a + b + c))
    return product.numerator + product.denominator


print(solve())
