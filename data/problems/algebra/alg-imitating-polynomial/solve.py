"""Lagrange interpolation in exact fractions."""

from fractions import Fraction


def solve(b=3, d=5, m=997):
    x = d + 1
    value = Fraction(0)
    for k in range(d + 1):
        term = Fraction(b**k)
        for j in range(d + 1):
            if j != k:
                term *= Fraction(x - j, k - j)
        value += term
    return int(abs(b ** (d + 2) - value)) % m


print(solve())
