"""Moebius inversion: d(k)^2 pairs have an lcm that divides k."""


def solve(n=7200):
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    exact = {}
    for k in divisors:
        below = [d for d in divisors if k % d == 0]
        exact[k] = len(below) ** 2 - sum(exact[d] for d in below if d < k)
    return exact[n]


print(solve())
