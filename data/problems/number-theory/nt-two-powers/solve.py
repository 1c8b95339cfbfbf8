"""Modular powers."""


def solve(a=7, b=13, n=2031, m=1000):
    return (pow(a, n, m) + pow(b, n, m)) % m


print(solve())
