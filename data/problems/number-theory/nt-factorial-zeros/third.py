"""Closed form: the exponent of p in n! is (n - digit sum of n in base p) / (p - 1)."""


def solve(n=300, b=12):
    zeros, p = [], 2
    while b > 1:
        e = 0
        while b % p == 0:
            b //= p
            e += 1
        if e:
            digits, rest = 0, n
            while rest:
                digits += rest % p
                rest //= p
            zeros.append((n - digits) // (p - 1) // e)
        p += 1
    return min(zeros)


print(solve())
