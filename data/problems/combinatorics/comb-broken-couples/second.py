"""Choose the couples that stay; for the others use a(n) = 2 (n - 1) (a(n-1) + a(n-2))."""

from math import comb


def solve(n=5, k=1):
    apart = [1, 0]
    for size in range(2, n + 1):
        apart.append(2 * (size - 1) * (apart[-1] + apart[-2]))
    return comb(n, k) * apart[n - k]


print(solve())
