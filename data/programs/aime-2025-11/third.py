from math import gcd, isqrt


def solve(coefficient=34, period=4):
    # Walk along the parabola in small steps of y, bisect every crossing, add up, and read the form off the sum.
    n = coefficient

    def saw(x):
        x = (x + 1) % period - 1
        return x if x < 1 else 2 - x

    def gap(y):
        return saw(n * y * y) - y

    steps = 200 * n
    total = 0.0
    for i in range(-steps, steps):
        low, high = (i + 0.37) / steps, (i + 1.37) / steps
        if high > 1 or low < -1:
            continue
        if gap(low) * gap(high) < 0:
            for _ in range(60):
                middle = (low + high) / 2
                if gap(low) * gap(middle) <= 0:
                    high = middle
                else:
                    low = middle
            total += low
    for d in range(1, 2 * n + 1):
        for a in range(1, 12):
            square = (d * total - a) ** 2
            whole = round(square)
            if d * total > a and abs(square - whole) < 1e-6 and isqrt(whole) ** 2 != whole:
                b, c = 1, whole
                for f in range(2, isqrt(whole) + 1):
                    while c % (f * f) == 0:
                        b, c = b * f, c // (f * f)
                if gcd(a, b, d) == 1:
                    return a + b + c + d
    raise ValueError("not of the form")


print(solve())
