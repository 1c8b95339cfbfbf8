"""Closed form: stars and bars, with the overfull chests taken out by inclusion and exclusion."""

from math import comb


def solve(n=21, r=4, low=2, high=8):
    free = n - r * low
    width = high - low + 1
    total = 0
    for j in range(r + 1):
        left = free - j * width
        if left >= 0:
            total += (-1) ** j * comb(r, j) * comb(left + r - 1, r - 1)
    return total


print(solve())
