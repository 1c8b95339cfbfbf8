"""Extend the table of finite differences by one entry."""

from itertools import pairwise


def solve(b=3, d=5, m=997):
    rows = [[b**k for k in range(d + 1)]]
    while len(rows[-1]) > 1:
        rows.append([after - before for before, after in pairwise(rows[-1])])
    value = sum(row[-1] for row in rows)
    return abs(b ** (d + 2) - value) % m


print(solve())
