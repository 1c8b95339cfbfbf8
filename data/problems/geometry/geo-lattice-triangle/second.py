"""Pick's theorem."""

from math import gcd


def solve(a=40, b=7, c=12, d=35):
    doubled = abs(a * d - b * c)
    border = gcd(a, b) + gcd(c, d) + gcd(c - a, d - b)
    return (doubled - border + 2) // 2


print(solve())
