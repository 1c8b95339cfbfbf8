"""Test the discriminant of every c."""

from math import isqrt


def solve(b=120, limit=3000):
    count = 0
    for c in range(1, limit + 1):
        square = b * b - 4 * c
        if square >= 0 and isqrt(square) ** 2 == square:
            count += 1
    return count


print(solve())
