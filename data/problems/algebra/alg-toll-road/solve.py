"""Add the kilometres one by one."""


def solve(first=5, step=3, n=20):
    total, price = 0, first
    for _ in range(n):
        total += price
        price += step
    return total


print(solve())
