from fractions import Fraction
from math import isqrt, radians, tan


def solve(shift=4, angle=60):
    # The parabola y = x^2 - shift and its image mirror each other in the line x = -y * tan(angle / 2),
    # so there (p / q) * y^2 - y - shift = 0 with p / q = tan(angle / 2)^2. The lower root is the point.
    square = Fraction(tan(radians(angle / 2)) ** 2).limit_denominator(100)
    p, q = square.numerator, square.denominator
    a, c = q, 2 * p
    b = q * q + 2 * c * q * shift
    if isqrt(b) ** 2 == b:
        raise ValueError("the root is rational")
    return a + b + c


print(solve())
