"""a_1 = tan t turns into tan(t + k pi/4): work with the Gaussian integer q + pi times (1 + i)^k."""

from math import gcd


def solve(p=17, q=5, n=2026):
    real, imaginary = q, p
    for _ in range(n - 1):
        real, imaginary = real - imaginary, real + imaginary
        g = gcd(real, imaginary)
        real, imaginary = real // g, imaginary // g
    return abs(real) + abs(imaginary)


print(solve())
