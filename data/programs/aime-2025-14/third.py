from decimal import Decimal, getcontext
from math import isqrt

getcontext().prec = 50


def solve(ab=14, bc=7, cd=24, de=13, ea=26, angle=60):
    # Exact corners by square roots, Newton's method in 50 digits, and a search for the form that needs 30 of them.
    if angle != 60:
        raise ValueError("worked out for 60 degrees only")
    half, root3 = Decimal("0.5"), Decimal(3).sqrt()

    def third_side(p, q):
        return Decimal(p * p + q * q - p * q).sqrt()

    def cosine(p, q, r):
        return (p * p + q * q - r * r) / (2 * p * q)

    ab, bc, cd, de, ea = map(Decimal, (ab, bc, cd, de, ea))
    ac, ad = third_side(ab, bc), third_side(de, ea)

    def rotated(cos_first, cos_second, sign):
        s, t = (1 - cos_first**2).sqrt(), (1 - cos_second**2).sqrt()
        return cos_first * cos_second - s * t, s * cos_second + cos_first * t

    cos_b = cosine(ab, ac, bc)
    cos_cad = cosine(ac, ad, cd)
    cos_e = cosine(ad, ea, de)
    x_e, y_e = rotated(cos_cad, cos_e, 1)
    points = [
        (Decimal(0), Decimal(0)),
        (ab * cos_b, -ab * (1 - cos_b**2).sqrt()),
        (ac, Decimal(0)),
        (ad * cos_cad, ad * (1 - cos_cad**2).sqrt()),
        (ea * x_e, ea * y_e),
    ]
    for i in range(5):
        (ax, ay), (bx, by), (cx, cy) = points[i - 2], points[i - 1], points[i]
        if (bx - ax) * (cy - by) - (by - ay) * (cx - bx) <= 0:
            raise ValueError("not convex")
    x = sum(p[0] for p in points) / 5
    y = sum(p[1] for p in points) / 5
    for _ in range(60):
        gx = gy = hxx = hxy = hyy = Decimal(0)
        for px, py in points:
            dx, dy = x - px, y - py
            d = (dx * dx + dy * dy).sqrt()
            gx, gy = gx + dx / d, gy + dy / d
            hxx, hyy, hxy = hxx + dy * dy / d**3, hyy + dx * dx / d**3, hxy - dx * dy / d**3
        det = hxx * hyy - hxy * hxy
        step_x, step_y = (gx * hyy - gy * hxy) / det, (gy * hxx - gx * hxy) / det
        length = (step_x**2 + step_y**2).sqrt()
        damp = min(Decimal(1), half * bc / length) if length else Decimal(1)
        x, y = x - damp * step_x, y - damp * step_y
    least = sum(((x - px) ** 2 + (y - py) ** 2).sqrt() for px, py in points)
    for p in range(2, 60):
        if isqrt(p) ** 2 == p:
            continue
        root = Decimal(p).sqrt()
        for n in range(1, int(least / root) + 1):
            m = least - n * root
            if m > half and abs(m - round(m)) < Decimal("1e-30"):
                return int(round(m)) + n + p
    raise ValueError("not of the form")


print(solve())
