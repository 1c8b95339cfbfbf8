"""The order divides phi(m): strip primes from phi(m) as long as the power stays 1."""


def factor(m):
    primes, p = {}, 2
    while m > 1:
        while m % p == 0:
            primes[p] = primes.get(p, 0) + 1
            m //= p
        p += 1
    return primes


def solve(b=10, m=487):
    phi = 1
    for p, e in factor(m).items():
        phi *= (p - 1) * p ** (e - 1)
    order = phi
    for p in factor(phi):
        while order % p == 0 and pow(b, order // p, m) == 1:
            order //= p
    return order


print(solve())
