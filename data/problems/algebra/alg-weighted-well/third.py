"""Walk downhill from house 1: a step to the right moves the well away from all people on its left."""


def solve(n=14):
    total = n * (n + 1) // 2
    value = sum(k * (k - 1) for k in range(1, n + 1))
    left = 0
    for x in range(1, n):
        left += x
        change = left - (total - left)
        if change >= 0:
            break
        value += change
    return value


print(solve())
