"""Pair the cheapest kilometre with the dearest."""


def solve(first=5, step=3, n=20):
    low, high, total = first, first + step * (n - 1), 0
    for _ in range(n // 2):
        total += low + high
        low, high = low + step, high - step
    return total + (low if n % 2 else 0)


print(solve())
