"""Try the two shorter sides."""


def solve(p=100):
    count = 0
    for a in range(1, p // 3 + 1):
        for b in range(a, (p - a) // 2 + 1):
            c = p - a - b
            count += c >= b and a + b > c
    return count


print(solve())
