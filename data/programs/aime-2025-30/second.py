from math import sqrt


def solve(p=18, q=72, r=98):
    # Compare coefficients with (x^2 + u x + v)^2: 8 v = 4 e2 - e1^2 and v^2 = e4. Bisect for sqrt(k), with v > 0.
    def gap(t):
        k = t * t
        e1 = p + q + r + k
        e2 = p * q + q * r + r * p + k * (p + q + r)
        return 4 * e2 - e1 * e1 - 8 * sqrt(p * q * r) * t

    top = 3 * sqrt(max(p, q, r))
    steps = 20000
    found = []
    for i in range(steps):
        low, high = top * (i + 0.31) / steps, top * (i + 1.31) / steps
        if gap(low) * gap(high) < 0:
            for _ in range(80):
                middle = (low + high) / 2
                if gap(low) * gap(middle) <= 0:
                    high = middle
                else:
                    low = middle
            found.append(low * low)
    if len(found) != 3:
        raise ValueError("not three values")
    total = sum(found)
    if abs(total - round(total)) > 1e-6:
        raise ValueError("not an integer")
    return round(total)


print(solve())
