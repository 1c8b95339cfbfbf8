"""Factor every number by its smallest prime factors."""


def solve(n=1500, k=6):
    smallest = list(range(n + 1))
    for p in range(2, int(n**0.5) + 1):
        if smallest[p] == p:
            for multiple in range(p * p, n + 1, p):
                smallest[multiple] = min(smallest[multiple], p)
    total = 0
    for number in range(1, n + 1):
        divisors, rest = 1, number
        while rest > 1:
            p, e = smallest[rest], 0
            while rest % p == 0:
                rest //= p
                e += 1
            divisors *= e + 1
        total += divisors == k
    return total


print(solve())
