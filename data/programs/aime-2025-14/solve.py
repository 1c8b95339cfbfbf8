from cmath import rect
from math import acos, cos, radians, sqrt


def solve(ab=14, bc=7, cd=24, de=13, ea=26, angle=60):
    # Put A at 0 and C on the real axis, find the point of least total distance, then its form m + n * sqrt(p).
    def side(p, q):
        return sqrt(p * p + q * q - 2 * p * q * cos(radians(angle)))

    def corner(p, q, opposite):
        return acos((p * p + q * q - opposite * opposite) / (2 * p * q))

    ac, ad = side(ab, bc), side(de, ea)
    turn = corner(ac, ad, cd)
    points = [0, rect(ab, -corner(ab, ac, bc)), ac, rect(ad, turn), rect(ea, turn + corner(ad, ea, de))]
    x = sum(points) / len(points)
    for _ in range(1000):
        near = [1 / abs(x - point) for point in points]
        x = sum(weight * point for weight, point in zip(near, points)) / sum(near)
    least = sum(abs(x - point) for point in points)
    for p in range(2, 100):
        for n in range(1, int(least / sqrt(p)) + 1):
            m = round(least - n * sqrt(p))
            if m > 0 and abs(m + n * sqrt(p) - least) < 1e-9:
                return m + n + p


print(solve())
