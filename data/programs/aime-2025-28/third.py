from fractions import Fraction
from math import gcd


def solve(numerator=25, denominator=11, index=2025, divisor=3, modulus=1000):
    # Exact fractions show for the first terms that the sum s of numerator and denominator goes to s^2 / divisor; then go on in
    # integers, modulo modulus * divisor, so that the division stays exact.
    if gcd(numerator, denominator) != 1:
        raise ValueError("not reduced")
    x = Fraction(numerator, denominator)
    sums = []
    for _ in range(9):
        sums.append(x.numerator + x.denominator)
        x = (x + 1 / x - 1) / divisor
    if any(b * divisor != a * a for a, b in zip(sums, sums[1:])):
        raise ValueError("the sums do not follow s^2 / divisor")
    s = sums[0]
    for _ in range(index - 1):
        s = (s * s // divisor) % (modulus * divisor)
    return s % modulus


print(solve())
