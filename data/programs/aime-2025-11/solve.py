from fractions import Fraction
from math import lcm, sqrt


def solve(coefficient=34, period=4):
    # Piece j of the graph is x = half * j + s * y for -1 <= y <= 1, where s alternates between 1 and -1. Its points on
    # x = coefficient * y^2 are the roots of coefficient * y^2 - s * y - half * j = 0.
    half = period // 2
    rational, surds = Fraction(0), {}
    for j in range(coefficient + 1):
        s = (-1) ** j
        square, rest = 1, 1 + (2 * coefficient) * (2 * half * j)
        for f in range(2, coefficient * half + 2):
            while rest % (f * f) == 0:
                square, rest = square * f, rest // (f * f)
        for sign in (1, -1):
            if -1 < (s + sign * square * sqrt(rest)) / (2 * coefficient) < 1:
                rational += Fraction(s, 2 * coefficient)
                surds[rest] = surds.get(rest, 0) + Fraction(sign * square, 2 * coefficient)
    [(c, factor)] = [(c, factor) for c, factor in surds.items() if factor]
    d = lcm(rational.denominator, factor.denominator)
    a, b = rational * d, factor * d
    if c == 1 or a <= 0 or b <= 0:
        raise ValueError("not of the form")
    return int(a + b + c + d)


print(solve())
