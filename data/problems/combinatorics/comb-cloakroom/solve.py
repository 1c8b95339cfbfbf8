"""Try every way."""

from itertools import permutations


def solve(n=6, k=2):
    return sum(sum(coat == owner for owner, coat in enumerate(way)) == k for way in permutations(range(n)))


print(solve())
