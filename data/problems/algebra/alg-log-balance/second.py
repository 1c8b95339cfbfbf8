"""Search the integers for the one that balances best."""

from math import log


def solve(a=12, b=35):
    def gap(x):
        u, v = log(x) / log(a), log(x) / log(b)
        return abs(u * v - u - v)

    return min(range(2, 2 * a * b), key=gap)


print(solve())
