"""Draw diagonal by diagonal: each adds one region, and one more for every diagonal that it crosses."""

from itertools import combinations


def solve(n=12):
    drawn, regions = [], 1
    for i, j in combinations(range(n), 2):
        if j - i == 1 or j - i == n - 1:
            continue
        crossed = sum(i < k < j < m or k < i < m < j for k, m in drawn)
        regions += 1 + crossed
        drawn.append((i, j))
    return regions


print(solve())
