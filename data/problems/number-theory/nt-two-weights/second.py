"""Closed form: g = ab - a - b and c = (a - 1)(b - 1) / 2."""


def solve(a=13, b=29):
    return a * b - a - b + (a - 1) * (b - 1) // 2


print(solve())
