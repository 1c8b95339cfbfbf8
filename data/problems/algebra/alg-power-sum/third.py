"""Closed form: the binomial expansion of ((s + d)/2)^k + ((s - d)/2)^k with d^2 = s^2 - 4p."""

from math import comb


def solve(s=7, p=3, k=12, m=1000):
    square = s * s - 4 * p
    doubled = sum(comb(k, 2 * j) * s ** (k - 2 * j) * square**j for j in range(k // 2 + 1))
    return doubled // 2 ** (k - 1) % m


print(solve())
