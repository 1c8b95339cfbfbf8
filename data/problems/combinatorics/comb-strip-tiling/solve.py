"""The last tile is short or long."""


def solve(a=2, b=3, n=6):
    before, now = 0, 1
    for _ in range(n):
        before, now = now, a * now + b * before
    return now


print(solve())
