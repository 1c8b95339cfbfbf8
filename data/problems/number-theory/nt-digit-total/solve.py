"""Look at every integer."""


def solve(n=5200, s=12):
    return sum(sum(map(int, str(k))) == s for k in range(1, n + 1))


print(solve())
