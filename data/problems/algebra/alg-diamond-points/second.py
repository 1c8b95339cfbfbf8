"""Sum the columns."""


def solve(a=2, b=3, n=40):
    return sum(2 * ((n - a * abs(x)) // b) + 1 for x in range(-(n // a), n // a + 1))


print(solve())
