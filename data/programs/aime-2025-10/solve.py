from itertools import combinations
from math import factorial


def solve(block=3):
    # Count which symbols stand in each row of each block, the first row being fixed; then order them.
    symbols = set(range(block * block))
    first = [frozenset(range(i * block, i * block + block)) for i in range(block)]

    def fill(row, column, in_row, in_block):
        if column == block:
            row, column, in_row = row + 1, 0, frozenset()
        if row == block:
            return 1
        free = symbols - in_row - in_block[column]
        total = 0
        for chosen in map(frozenset, combinations(sorted(free), block)):
            after = [*in_block]
            after[column] = after[column] | chosen
            total += fill(row, column + 1, in_row | chosen, after)
        return total

    patterns = fill(1, 0, frozenset(), first)
    ways = factorial(block * block) * patterns * factorial(block) ** (block * (block - 1))
    powers = {}
    prime = 2
    while ways > 1:
        while ways % prime == 0:
            powers[prime] = powers.get(prime, 0) + 1
            ways //= prime
        prime += 1
    if len(powers) != 2 * 2:
        raise ValueError("not a product of four prime powers")
    return sum(prime * power for prime, power in powers.items())


print(solve())
