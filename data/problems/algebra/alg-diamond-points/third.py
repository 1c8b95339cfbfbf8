"""Generating function: coefficients of (1 + 2 sum z^(a i)) (1 + 2 sum z^(b j)), summed up to n."""


def solve(a=2, b=3, n=40):
    ways = [0] * (n + 1)
    for i in range(0, n + 1, a):
        for j in range(0, n + 1 - i, b):
            ways[i + j] += (2 if i else 1) * (2 if j else 1)
    return sum(ways)


print(solve())
