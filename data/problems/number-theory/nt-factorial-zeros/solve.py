"""Divide the factorial by the base as long as it goes."""

from math import factorial


def solve(n=300, b=12):
    value, zeros = factorial(n), 0
    while value % b == 0:
        value //= b
        zeros += 1
    return zeros


print(solve())
