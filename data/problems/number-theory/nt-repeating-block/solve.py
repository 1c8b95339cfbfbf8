"""Long division until the first remainder returns."""


def solve(b=10, m=487):
    remainder, digits = b % m, 1
    while remainder != 1:
        remainder = remainder * b % m
        digits += 1
    return digits


print(solve())
