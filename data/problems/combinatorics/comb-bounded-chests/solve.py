"""Fill chest by chest."""


def solve(n=21, r=4, low=2, high=8):
    ways = [1] + [0] * n
    for _ in range(r):
        ways = [sum(ways[s - c] for c in range(low, min(high, s) + 1)) for s in range(n + 1)]
    return ways[n]


print(solve())
