"""Try every choice."""

from itertools import combinations, pairwise


def solve(n=16, r=4, g=2):
    return sum(all(y - x > g for x, y in pairwise(c)) for c in combinations(range(n), r))


print(solve())
