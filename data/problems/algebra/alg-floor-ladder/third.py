"""The Euclid-like recursion for floor sums."""


def floor_sum(n, m, a, c):
    """Sum of floor((a i + c) / m) for i = 0 .. n-1."""
    total = 0
    if a >= m:
        total += n * (n - 1) // 2 * (a // m)
        a %= m
    if c >= m:
        total += n * (c // m)
        c %= m
    top = a * n + c
    if top >= m:
        total += floor_sum(top // m, a, m, top % m)
    return total


def solve(a=7, b=11, n=50):
    return floor_sum(n + 1, b, a, 0)


print(solve())
