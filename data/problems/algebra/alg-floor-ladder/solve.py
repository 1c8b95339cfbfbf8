"""Add the terms."""


def solve(a=7, b=11, n=50):
    return sum(a * k // b for k in range(1, n + 1))


print(solve())
