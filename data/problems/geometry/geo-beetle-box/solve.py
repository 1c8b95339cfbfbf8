"""Unfold two neighbouring faces in each of the three ways."""


def solve(a=9, b=5, c=12):
    return min((a + b) ** 2 + c * c, (a + c) ** 2 + b * b, (b + c) ** 2 + a * a)


print(solve())
