"""Count subsets by their sum modulo m, number by number."""


def solve(n=12, m=7):
    ways = [1] + [0] * (m - 1)
    for k in range(1, n + 1):
        ways = [ways[r] + ways[(r - k) % m] for r in range(m)]
    return ways[0]


print(solve())
