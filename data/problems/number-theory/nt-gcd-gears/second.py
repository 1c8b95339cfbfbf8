"""Group by the value d: it occurs phi(n / d) times."""


def phi(m):
    result, p, rest = m, 2, m
    while rest > 1:
        if rest % p == 0:
            result -= result // p
            while rest % p == 0:
                rest //= p
        p += 1
    return result


def solve(n=120):
    return sum(d * phi(n // d) for d in range(1, n + 1) if n % d == 0)


print(solve())
