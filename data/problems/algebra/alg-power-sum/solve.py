"""Recurrence of the power sums, s(k) = s s(k-1) - p s(k-2)."""


def solve(s=7, p=3, k=12, m=1000):
    before, now = 2, s
    for _ in range(k - 1):
        before, now = now, s * now - p * before
    return now % m


print(solve())
