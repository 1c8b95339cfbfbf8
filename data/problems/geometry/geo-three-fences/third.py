"""Barycentric coordinates: the corners of the inner triangle as weights of A, B, C, and a determinant."""

from fractions import Fraction


def solve(x=2, y=2, z=3):
    # On AD the weights of B and C are x : 1, on BE those of C and A are y : 1, on CF those of A and B are z : 1.
    corners = [(1, x * y, y), (z, 1, y * z), (z * x, x, 1)]  # AD and BE; BE and CF; CF and AD
    (a, b, c), (d, e, f), (g, h, i) = corners
    determinant = a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)
    weights = (a + b + c) * (d + e + f) * (g + h + i)
    area = abs(Fraction(determinant, weights))
    return area.numerator + area.denominator


print(solve())
