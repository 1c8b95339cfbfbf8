"""Cut the triangle by vertical lines and count on each line between the exact borders."""

from fractions import Fraction
from math import ceil, floor


def solve(a=40, b=7, c=12, d=35):
    corners = sorted([(0, 0), (a, b), (c, d)])
    sides = [(corners[0], corners[1]), (corners[1], corners[2]), (corners[0], corners[2])]
    count = 0
    for x in range(corners[0][0], corners[2][0] + 1):
        heights = []
        for (x0, y0), (x1, y1) in sides:
            if x0 == x1:
                heights += [Fraction(y0), Fraction(y1)] if x == x0 else []
            elif x0 <= x <= x1:
                heights.append(y0 + Fraction((y1 - y0) * (x - x0), x1 - x0))
        if x in (corners[0][0], corners[2][0]):
            continue  # a vertex or a vertical side: nothing strictly inside
        low, high = min(heights), max(heights)
        count += max(0, ceil(high) - floor(low) - 1)
    return count


print(solve())
