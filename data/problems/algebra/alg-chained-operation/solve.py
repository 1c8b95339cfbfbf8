"""Apply the operation from the left."""


def solve(c=3, n=15, m=1000):
    value = 1
    for k in range(2, n + 1):
        value = value + k + c * value * k
    return value % m


print(solve())
