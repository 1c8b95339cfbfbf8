"""Closed form: choose the four sides on either side of the pane."""


def solve(a=7, b=9, i=3, j=4):
    return i * (a - i + 1) * j * (b - j + 1)


print(solve())
