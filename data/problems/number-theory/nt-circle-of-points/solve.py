"""Try every x."""

from math import isqrt


def solve(n=5525):
    count = 0
    for x in range(-isqrt(n), isqrt(n) + 1):
        square = n - x * x
        y = isqrt(square)
        if y * y == square:
            count += 2 if y else 1
    return count


print(solve())
