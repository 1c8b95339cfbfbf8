"""Sets of multiples."""


def solve(a=4, b=6, c=9, n=1900):
    x, y, z = (set(range(d, n + 1, d)) for d in (a, b, c))
    return len((x ^ y ^ z) - (x & y & z))


print(solve())
