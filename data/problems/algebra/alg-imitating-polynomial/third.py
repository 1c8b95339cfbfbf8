"""Closed form: P(d+1) = b^(d+1) - (b-1)^(d+1), because the next difference of b^k is (b-1)^(d+1)."""


def solve(b=3, d=5, m=997):
    return (b ** (d + 2) - b ** (d + 1) + (b - 1) ** (d + 1)) % m


print(solve())
