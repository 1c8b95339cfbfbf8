"""Choose the lucky owners; the rest is a derangement, by its recurrence."""

from math import comb


def solve(n=6, k=2):
    none = [1, 0]
    for size in range(2, n + 1):
        none.append((size - 1) * (none[-1] + none[-2]))
    return comb(n, k) * none[n - k]


print(solve())
