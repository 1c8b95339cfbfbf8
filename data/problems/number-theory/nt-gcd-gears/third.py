"""Closed form: n times the product of 1 + e (p - 1) / p over the prime powers p^e of n."""

from fractions import Fraction


def solve(n=120):
    value, rest, p = Fraction(n), n, 2
    while rest > 1:
        e = 0
        while rest % p == 0:
            rest //= p
            e += 1
        value *= 1 + Fraction(e * (p - 1), p)
        p += 1
    return int(value)


print(solve())
