"""Read the coefficient off the digits of the value at a large power of two."""


def solve(a=3, b=5, n=7, k=6, m=1000):
    bits = n * (1 + a + b).bit_length() + 1  # no coefficient needs more
    x = 1 << bits
    value = (x * x + a * x + b) ** n
    return (value >> (bits * k)) % x % m


print(solve())
