"""Add the divisors."""

from math import gcd


def solve(n=120):
    return sum(gcd(k, n) for k in range(1, n + 1))


print(solve())
