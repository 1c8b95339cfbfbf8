"""Halve the argument."""


def solve(a=3, k=2, x=25):
    if x == 1:
        return a
    half = x // 2
    rest = x - half
    return solve(a, k, half) + solve(a, k, rest) + k * half * rest


print(solve())
