"""Try every order."""

from itertools import combinations


def solve(p=8, q=5):
    count = 0
    for nos in combinations(range(p + q), q):
        count += all(position + 1 > 2 * (seen + 1) for seen, position in enumerate(nos))
    return count


print(solve())
