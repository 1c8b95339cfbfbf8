"""Closed form of an arithmetic series."""


def solve(first=5, step=3, n=20):
    return n * first + step * n * (n - 1) // 2


print(solve())
