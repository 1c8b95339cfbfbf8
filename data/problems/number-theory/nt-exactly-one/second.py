"""Inclusion and exclusion over least common multiples."""

from math import lcm


def solve(a=4, b=6, c=9, n=1900):
    singles = n // a + n // b + n // c
    pairs = n // lcm(a, b) + n // lcm(a, c) + n // lcm(b, c)
    return singles - 2 * pairs + 3 * (n // lcm(a, b, c))


print(solve())
