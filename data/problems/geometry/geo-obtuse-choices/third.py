"""By coordinates: the largest angle has a negative scalar product."""

from itertools import combinations
from math import cos, pi, sin


def solve(n=20):
    corners = [(cos(2 * pi * k / n), sin(2 * pi * k / n)) for k in range(n)]
    count = 0
    for triple in combinations(corners, 3):
        for (px, py), (qx, qy), (rx, ry) in (triple, triple[1:] + triple[:1], triple[2:] + triple[:2]):
            count += (qx - px) * (rx - px) + (qy - py) * (ry - py) < -1 / n**9
    return count


print(solve())
