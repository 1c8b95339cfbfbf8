"""Baby steps and giant steps: the least n = i s - j with b^(i s) = b^j."""

from math import isqrt


def solve(b=10, m=487):
    step = isqrt(m) + 1
    baby = {pow(b, j, m): j for j in range(step)}  # the largest j for each power
    for i in range(1, step + 2):
        j = baby.get(pow(b, i * step, m))
        if j is not None:
            n = i * step - j
            return min(d for d in range(1, n + 1) if n % d == 0 and pow(b, d, m) == 1)


print(solve())
