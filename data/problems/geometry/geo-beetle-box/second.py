"""Closed form: unfold along the longest edge, since the cross term 2 xy is then least."""


def solve(a=9, b=5, c=12):
    x, y, _ = sorted((a, b, c))
    return a * a + b * b + c * c + 2 * x * y


print(solve())
