"""Try every rectangle."""


def solve(a=7, b=9, i=3, j=4):
    count = 0
    for top in range(1, a + 1):
        for bottom in range(top, a + 1):
            for left in range(1, b + 1):
                for right in range(left, b + 1):
                    count += top <= i <= bottom and left <= j <= right
    return count


print(solve())
