from math import cos, gcd, isqrt, radians, sin


def solve(shift=4, angle=60):
    # Walk along the parabola, rotate each point, and bisect where the image meets the parabola again.
    c, s = cos(radians(angle)), sin(radians(angle))

    def gap(t):
        x, y = t, t * t - shift
        u, v = x * c - y * s, x * s + y * c
        return v - (u * u - shift)

    def image(t):
        y = t * t - shift
        return t * c - y * s, t * s + y * c

    met = []
    reach = isqrt(shift) + 4
    steps = 40000
    grid = [-reach + 2 * reach * i / steps for i in range(steps + 1)]
    for low, high in zip(grid, grid[1:]):
        if gap(low) * gap(high) < 0:
            for _ in range(100):
                middle = (low + high) / 2
                if gap(low) * gap(middle) <= 0:
                    high = middle
                else:
                    low = middle
            met.append(image(low))
    fourth = [y for x, y in met if x > 0 > y]
    if len(fourth) != 1:
        raise ValueError("not one point in the fourth quadrant")
    y = fourth[0]
    for below in range(1, 20):
        for a in range(1, 40):
            square = (a - below * y) ** 2
            if gcd(a, below) == 1 and abs(square - round(square)) < 1e-7:
                if isqrt(round(square)) ** 2 == round(square):
                    raise ValueError("a rational root")
                return a + round(square) + below
    raise ValueError("not of the form")


print(solve())
