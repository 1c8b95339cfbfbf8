"""Filter with roots of unity: the mean of prod (1 + w^(jk)) over all j."""

from cmath import exp, pi


def solve(n=12, m=7):
    total = 0
    for j in range(m):
        term = 1
        for k in range(1, n + 1):
            term *= 1 + exp(2j * pi * j * k / m)
        total += term
    return round(total.real / m)


print(solve())
