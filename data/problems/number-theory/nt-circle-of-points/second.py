"""Jacobi: four times the surplus of divisors 4k + 1 over divisors 4k + 3."""


def solve(n=5525):
    surplus = {1: 1, 3: -1}
    return 4 * sum(surplus.get(d % 4, 0) for d in range(1, n + 1) if n % d == 0)


print(solve())
