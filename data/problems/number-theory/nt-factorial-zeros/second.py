"""Count each prime of the base in the factors 1 to n."""


def solve(n=300, b=12):
    best, p = None, 2
    while b > 1:
        e = 0
        while b % p == 0:
            b //= p
            e += 1
        if e:
            total = 0
            for k in range(p, n + 1, p):
                rest = k
                while rest % p == 0:
                    rest //= p
                    total += 1
            best = total // e if best is None else min(best, total // e)
        p += 1
    return best


print(solve())
