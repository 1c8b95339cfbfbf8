"""Walk over the counts of both cards."""


def solve(p=8, q=5):
    ways = {(0, 0): 1}
    for yes in range(p + 1):
        for no in range(q + 1):
            if (yes, no) != (0, 0):
                before = ways.get((yes - 1, no), 0) + ways.get((yes, no - 1), 0)
                ways[yes, no] = before if yes > no else 0
    return ways[p, q]


print(solve())
