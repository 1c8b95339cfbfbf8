"""Complement: of all strips take away those wholly before or wholly after the pane."""

from math import comb


def solve(a=7, b=9, i=3, j=4):
    def strips(size, at):
        return comb(size + 1, 2) - comb(at, 2) - comb(size - at + 1, 2)

    return strips(a, i) * strips(b, j)


print(solve())
