"""Sum over the number of long tiles."""

from math import comb


def solve(a=2, b=3, n=6):
    return sum(comb(n - k, k) * a ** (n - 2 * k) * b**k for k in range(n // 2 + 1))


print(solve())
