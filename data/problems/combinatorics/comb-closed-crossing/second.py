"""List the routes by which of their steps go east, and drop those through the closed crossing."""

from itertools import combinations


def solve(a=6, b=5, p=3, q=2):
    count = 0
    for east in combinations(range(a + b), a):
        if sum(step < p + q for step in east) != p:
            count += 1
    return count


print(solve())
