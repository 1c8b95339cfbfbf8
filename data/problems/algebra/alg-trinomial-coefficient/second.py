"""Sum over how many factors give x^2."""

from math import comb


def solve(a=3, b=5, n=7, k=6, m=1000):
    total = 0
    for squares in range(min(n, k // 2) + 1):
        linear = k - 2 * squares
        if squares + linear <= n:
            rest = n - squares - linear
            total += comb(n, squares) * comb(n - squares, linear) * a**linear * b**rest
    return total % m


print(solve())
