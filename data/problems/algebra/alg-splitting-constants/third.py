"""x(b - x) grows up to x = b/2, so count the smaller solutions by bisection."""


def solve(b=120, limit=3000):
    low, high = 0, b // 2
    while low < high:
        middle = (low + high + 1) // 2
        if middle * (b - middle) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


print(solve())
