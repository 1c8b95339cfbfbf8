"""Euler's formula, with the crossings counted as the quadruples of corners."""

from itertools import combinations


def solve(n=12):
    crossings = sum(1 for _ in combinations(range(n), 4))
    diagonals = n * (n - 3) // 2
    vertices = n + crossings
    edges = n + diagonals + 2 * crossings
    return edges - vertices + 1


print(solve())
