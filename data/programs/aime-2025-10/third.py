from collections import Counter
from itertools import permutations
from math import factorial


def solve(block=3):
    # Fix the first block as 1..n row by row. Go through all second blocks as ordered cells, row by row, and count the third
    # blocks by the sets that are left for its rows.
    n = block * block
    rows = [set(range(i * block, i * block + block)) for i in range(block)]
    second = Counter()

    def place(row, left, sets):
        if row == block:
            second[tuple(sets)] += 1
            return
        for cells in permutations(sorted(left - rows[row]), block):
            place(row + 1, left - set(cells), [*sets, frozenset(cells)])

    place(0, set(range(n)), [])
    if block == 2:
        ways = sum(second.values())
    else:
        ways = 0
        for sets, count in second.items():
            third = [set(range(n)) - rows[i] - sets[i] for i in range(block)]
            if set().union(*third) == set(range(n)):
                ways += count * factorial(block) ** block
    ways *= factorial(n)
    exponents = {}
    for prime in range(2, n + 1):
        while ways % prime == 0:
            ways //= prime
            exponents[prime] = exponents.get(prime, 0) + 1
    if ways != 1 or len(exponents) != 4:
        raise ValueError("not four primes")
    return sum(prime * exponent for prime, exponent in exponents.items())


print(solve())
