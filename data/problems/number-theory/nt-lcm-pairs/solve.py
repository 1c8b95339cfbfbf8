"""Try all pairs of divisors."""

from math import lcm


def solve(n=7200):
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    return sum(lcm(a, b) == n for a in divisors for b in divisors)


print(solve())
