from math import comb, factorial


def solve(block=3):
    # By hand for three rows: the first block's second row takes k symbols from the second block's first row; the
    # other two blocks then have C(3, k) ways each, and so has the first.
    if block != 3:
        raise ValueError("worked out for three blocks of three rows only")
    patterns = sum(comb(3, k) ** 3 for k in range(4))
    ways = factorial(9) * patterns * factorial(3) ** 6
    total = 0
    primes = 0
    for prime in range(2, ways):
        if ways == 1:
            break
        if ways % prime == 0:
            primes += 1
        while ways % prime == 0:
            ways //= prime
            total += prime
    if primes != 4:
        raise ValueError("not four primes")
    return total


print(solve())
