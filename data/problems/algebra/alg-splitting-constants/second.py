"""Collect the products of pairs of positive integers with sum b."""


def solve(b=120, limit=3000):
    return len({x * (b - x) for x in range(1, b) if x * (b - x) <= limit})


print(solve())
