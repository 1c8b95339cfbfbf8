"""Coordinates in exact fractions: A = (0, 0), B = (1, 0), C = (0, 1)."""

from fractions import Fraction


def crossing(p, q, r, s):
    """Of the lines pq and rs."""
    a1, b1 = q[1] - p[1], p[0] - q[0]
    a2, b2 = s[1] - r[1], r[0] - s[0]
    c1, c2 = a1 * p[0] + b1 * p[1], a2 * r[0] + b2 * r[1]
    d = a1 * b2 - a2 * b1
    return (c1 * b2 - c2 * b1) / d, (a1 * c2 - a2 * c1) / d


def solve(x=2, y=2, z=3):
    one, zero = Fraction(1), Fraction(0)
    a, b, c = (zero, zero), (one, zero), (zero, one)
    d = (Fraction(x, x + 1), Fraction(1, x + 1))
    e = (zero, Fraction(y, y + 1))
    f = (Fraction(1, z + 1), zero)
    p, q, r = crossing(a, d, b, e), crossing(b, e, c, f), crossing(c, f, a, d)
    area = abs((q[0] - p[0]) * (r[1] - p[1]) - (r[0] - p[0]) * (q[1] - p[1]))
    return area.numerator + area.denominator


print(solve())
