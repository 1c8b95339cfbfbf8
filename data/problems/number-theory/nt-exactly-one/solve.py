"""Look at every integer."""


def solve(a=4, b=6, c=9, n=1900):
    return sum((k % a == 0) + (k % b == 0) + (k % c == 0) == 1 for k in range(1, n + 1))


print(solve())
