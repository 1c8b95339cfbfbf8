"""Try every choice: a triangle is obtuse if one of its arcs is more than half the circle."""


def solve(n=20):
    count = 0
    for i in range(n):
        for j in range(i + 1, n):
            for k in range(j + 1, n):
                count += 2 * max(j - i, k - j, n - k + i) > n
    return count


print(solve())
