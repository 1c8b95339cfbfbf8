"""Try the well at every house: the sum is convex and bends only there."""


def solve(n=14):
    return min(sum(k * abs(x - k) for k in range(1, n + 1)) for x in range(1, n + 1))


print(solve())
