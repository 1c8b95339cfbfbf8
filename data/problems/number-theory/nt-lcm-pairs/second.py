"""Closed form: each prime power p^e of n leaves 2 e + 1 choices."""


def solve(n=7200):
    count, p = 1, 2
    while n > 1:
        e = 0
        while n % p == 0:
            n //= p
            e += 1
        count *= 2 * e + 1
        p += 1
    return count


print(solve())
