"""Closed form over the prime powers: e + 1 for p = 4k + 1, and e must be even for p = 4k + 3."""


def solve(n=5525):
    count, p = 4, 2
    while n > 1:
        e = 0
        while n % p == 0:
            n //= p
            e += 1
        if p % 4 == 1:
            count *= e + 1
        elif p % 4 == 3 and e % 2:
            return 0
        p += 1
    return count


print(solve())
