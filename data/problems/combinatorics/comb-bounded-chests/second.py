"""Try every filling."""

from itertools import product


def solve(n=21, r=4, low=2, high=8):
    return sum(sum(filling) == n for filling in product(range(low, high + 1), repeat=r))


print(solve())
