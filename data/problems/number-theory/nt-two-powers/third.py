"""The whole numbers, divided once."""


def solve(a=7, b=13, n=2031, m=1000):
    return (a**n + b**n) % m


print(solve())
