"""Try every colouring."""

from itertools import product


def solve(n=6, k=4):
    return sum(all(c[i] != c[i - 1] for i in range(n)) for c in product(range(k), repeat=n))


print(solve())
