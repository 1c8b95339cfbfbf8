from cmath import exp, phase
from math import degrees, radians


def solve(a=84, b=60, c=36, second=2, third=3):
    # Coordinates: the triangle on the unit circle, midpoints and feet, and the arcs between them as angles at the centre.
    if a + b + c != 180 or max(a, b, c) >= 90:
        raise ValueError("not an acute triangle")
    corner_a = 1 + 0j
    corner_b = exp(1j * radians(2 * c))
    corner_c = exp(1j * radians(2 * c + 2 * a))

    def foot(p, q, r):
        along = (r - q) / abs(r - q)
        return q + along * ((p - q) * along.conjugate()).real

    d, e, f = (corner_b + corner_c) / 2, (corner_a + corner_c) / 2, (corner_a + corner_b) / 2
    g = foot(corner_a, corner_b, corner_c)
    h = foot(corner_b, corner_a, corner_c)
    j = foot(corner_c, corner_a, corner_b)
    for point, start, end in ((g, corner_b, d), (h, corner_a, e), (j, corner_a, f)):
        share = ((point - start) / (end - start)).real
        if not 0.001 < share < 0.999:
            raise ValueError("a foot is not on its half of the side")
    centre = (corner_a + corner_b + corner_c) / 2

    def arc(p, q):
        return abs(degrees(phase((p - centre) / (q - centre))))

    total = arc(d, e) + second * arc(h, j) + third * arc(f, g)
    if abs(total - round(total)) > 1e-6:
        raise ValueError("not an integer")
    return round(total)


print(solve())
