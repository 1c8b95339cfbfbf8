"""Search numerically for the best point on each edge that the way can cross."""

from math import hypot


def shortest(u, v, w):
    """From a corner over a face of sides u and w, across the edge of length w, and over a face of sides v and w."""
    low, high = 0.0, float(w)
    for _ in range(200):
        x, y = low + (high - low) / 3, high - (high - low) / 3
        if hypot(u, x) + hypot(v, w - x) < hypot(u, y) + hypot(v, w - y):
            high = y
        else:
            low = x
    return hypot(u, low) + hypot(v, w - low)


def solve(a=9, b=5, c=12):
    return round(min(shortest(a, b, c), shortest(b, c, a), shortest(c, a, b)) ** 2)


print(solve())
