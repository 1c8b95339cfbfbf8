"""Slice by planes z = k, and count each triangle by summing its rows in exact fractions."""

from fractions import Fraction
from math import ceil


def solve(a=15, b=18, c=20):
    count = 0
    for z in range(1, c):
        scale = 1 - Fraction(z, c)
        y = 1
        while y < b * scale:
            count += ceil(a * (scale - Fraction(y, b))) - 1
            y += 1
    return count


print(solve())
