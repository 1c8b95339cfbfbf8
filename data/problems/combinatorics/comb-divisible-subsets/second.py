"""Try every subset."""


def solve(n=12, m=7):
    sums = [0]
    for k in range(1, n + 1):
        sums += [s + k for s in sums]
    return sum(s % m == 0 for s in sums)


print(solve())
