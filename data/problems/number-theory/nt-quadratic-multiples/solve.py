"""Try every x."""


def solve(c=10, m=22, n=2000):
    return sum((x * x + x + c) % m == 0 for x in range(1, n + 1))


print(solve())
