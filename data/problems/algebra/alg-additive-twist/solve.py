"""Step from n to n + 1."""


def solve(a=3, k=2, x=25):
    value = a
    for n in range(1, x):
        value += a + k * n
    return value


print(solve())
