"""Multiply the polynomials out."""


def solve(a=3, b=5, n=7, k=6, m=1000):
    coefficients = [1]
    for _ in range(n):
        grown = [0] * (len(coefficients) + 2)
        for i, c in enumerate(coefficients):
            grown[i] += b * c
            grown[i + 1] += a * c
            grown[i + 2] += c
        coefficients = grown
    return coefficients[k] % m


print(solve())
