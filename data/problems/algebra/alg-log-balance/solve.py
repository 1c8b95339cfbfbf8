"""Bisect the difference of the two sides, divided by log x: it grows with x."""

from math import log


def solve(a=12, b=35):
    low, high = 1.0, float(a * b) ** 2
    while high - low > 1e-6:
        middle = (low + high) / 2
        if log(middle) / (log(a) * log(b)) < 1 / log(a) + 1 / log(b):
            low = middle
        else:
            high = middle
    return round(low)


print(solve())
