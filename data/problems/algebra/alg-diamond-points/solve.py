"""Try all pairs in the square around the region."""


def solve(a=2, b=3, n=40):
    return sum(a * abs(x) + b * abs(y) <= n for x in range(-n, n + 1) for y in range(-n, n + 1))


print(solve())
