"""Count routes crossing by crossing."""


def solve(a=6, b=5, p=3, q=2):
    ways = [[0] * (b + 1) for _ in range(a + 1)]
    for x in range(a + 1):
        for y in range(b + 1):
            if (x, y) == (p, q):
                continue
            if x == y == 0:
                ways[x][y] = 1
            else:
                ways[x][y] = (ways[x - 1][y] if x else 0) + (ways[x][y - 1] if y else 0)
    return ways[a][b]


print(solve())
