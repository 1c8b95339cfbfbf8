"""Solve modulo each prime power, and join the solutions by the Chinese remainder theorem."""


def solve(c=10, m=22, n=2000):
    modulus, roots, rest, p = 1, [0], m, 2
    while rest > 1:
        q = 1
        while rest % p == 0:
            rest //= p
            q *= p
        if q > 1:
            local = [r for r in range(q) if (r * r + r + c) % q == 0]
            inverse = pow(modulus, -1, q)
            roots = [r + modulus * ((s - r) * inverse % q) for r in roots for s in local]
            modulus *= q
        p += 1
    return sum((n - r) // m + (r > 0) for r in roots)


print(solve())
