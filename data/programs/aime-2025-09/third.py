from math import isclose, isqrt, sqrt


def solve(shift=4, angle=60):
    # By hand for 60 degrees: the point is r * (1/2, -sqrt(3)/2) with r^2 + 2 sqrt(3) r - 4 shift = 0.
    if angle != 60:
        raise ValueError("worked out for 60 degrees only")
    r = -sqrt(3) + sqrt(3 + 4 * shift)
    y = -sqrt(3) / 2 * r
    a, b, c = 3, 3 * (3 + 4 * shift), 2
    if isqrt(b) ** 2 == b or not isclose(y, (a - sqrt(b)) / c):
        raise ValueError("not of the form")
    return a + b + c


print(solve())
