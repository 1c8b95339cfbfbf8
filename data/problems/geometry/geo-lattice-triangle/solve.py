"""Test every point of the bounding box."""


def solve(a=40, b=7, c=12, d=35):
    count = 0
    for x in range(min(0, a, c), max(0, a, c) + 1):
        for y in range(min(0, b, d), max(0, b, d) + 1):
            first = a * y - b * x
            second = (c - a) * (y - b) - (d - b) * (x - a)
            third = -c * (y - d) + d * (x - c)
            count += (first > 0) == (second > 0) == (third > 0) and first * second * third != 0
    return count


print(solve())
