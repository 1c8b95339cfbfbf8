"""Try every message."""

from itertools import pairwise, product


def solve(q=3, n=7, k=2):
    return sum(sum(x == 0 and y == 1 for x, y in pairwise(message)) == k for message in product(range(q), repeat=n))


print(solve())
