from fractions import Fraction
from math import isqrt


def solve(ab=14, bc=7, cd=24, de=13, ea=26, angle=60):
    # By hand where ab = 2 bc and ea = 2 de: the triangles at B and E are right, and the least sum is n (2 + sqrt 3) with
    # n^2 = bc^2 + de^2 - 2 bc de cos(CAD + 60 degrees).
    if angle != 60 or ab != 2 * bc or ea != 2 * de:
        raise ValueError("another case")
    cosine = Fraction(3 * bc * bc + 3 * de * de - cd * cd, 6 * bc * de)
    product = bc * de
    under = 3 * (product * product - (product * cosine) ** 2)
    root = Fraction(isqrt(under.numerator), isqrt(under.denominator))
    if root * root != under:
        raise ValueError("not of the form")
    square = bc * bc + de * de - product * cosine + root
    if square.denominator != 1 or isqrt(square.numerator) ** 2 != square.numerator:
        raise ValueError("not of the form")
    n = isqrt(square.numerator)
    return 2 * n + n + 3


print(solve())
