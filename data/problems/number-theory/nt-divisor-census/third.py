"""Build the numbers: choose prime powers p^e in rising order with the product of all e + 1 equal to k."""


def solve(n=1500, k=6):
    primes = [p for p in range(2, n + 1) if all(p % d for d in range(2, int(p**0.5) + 1))]

    def build(limit, left, start):
        if left == 1:
            return 1
        count = 0
        for at in range(start, len(primes)):
            p = primes[at]
            if p > limit:
                break
            power, e = p, 1
            while power <= limit:
                if left % (e + 1) == 0:
                    count += build(limit // power, left // (e + 1), at + 1)
                power *= p
                e += 1
        return count

    return build(n, k, 0)


print(solve())
