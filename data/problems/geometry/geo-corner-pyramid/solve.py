"""Test every point of the box."""


def solve(a=15, b=18, c=20):
    return sum(
        x * b * c + y * a * c + z * a * b < a * b * c for x in range(1, a) for y in range(1, b) for z in range(1, c)
    )


print(solve())
