"""Closed form: dividing by log x gives log x = log a + log b."""


def solve(a=12, b=35):
    return a * b


print(solve())
