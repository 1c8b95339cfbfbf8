"""Closed form: the four pieces satisfy p^2 + q^2 + r^2 + s^2 = D^2."""

from math import gcd


def solve(p=6, q=8, r=3):
    top = (p * p + q * q + r * r) * r * r + p * p * q * q
    bottom = r * r
    g = gcd(top, bottom)
    return (top + bottom) // g


print(solve())
