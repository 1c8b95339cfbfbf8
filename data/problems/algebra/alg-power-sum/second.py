"""Trace of a power of the companion matrix, by repeated squaring."""


def multiply(a, b, m):
    return [[sum(a[i][t] * b[t][j] for t in range(2)) % m for j in range(2)] for i in range(2)]


def solve(s=7, p=3, k=12, m=1000):
    power, base = [[1, 0], [0, 1]], [[s % m, -p % m], [1, 0]]
    while k:
        if k & 1:
            power = multiply(power, base, m)
        base = multiply(base, base, m)
        k >>= 1
    return (power[0][0] + power[1][1]) % m


print(solve())
