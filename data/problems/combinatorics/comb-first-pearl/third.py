"""Closed form: the pearls cut the pebbles into r + 1 parts of equal expected size."""

from math import gcd


def solve(b=25, r=6):
    top, bottom = b + r + 1, r + 1
    g = gcd(top, bottom)
    return (top + bottom) // g


print(solve())
