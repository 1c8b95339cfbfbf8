def solve(p=18, q=72, r=98):
    # No algebra: for each k the two valleys of f by ternary search, and the k where they are equally deep by bisection.
    def difference(k):
        a, b, c, d = sorted((p, q, r, k))

        def depth(low, high):
            def f(x):
                return (x - p) * (x - q) * (x - r) * (x - k) / x

            for _ in range(90):
                left, right = low + (high - low) / 3, high - (high - low) / 3
                if f(left) < f(right):
                    high = right
                else:
                    low = left
            return f((low + high) / 2)

        return depth(a, b) - depth(c, d)

    top = 4 * max(p, q, r)
    steps = 400
    total, count = 0.0, 0
    grid = [top * (i + 0.37) / steps for i in range(steps)]
    values = [difference(k) for k in grid]
    for low, high, at_low, at_high in zip(grid, grid[1:], values, values[1:]):
        if at_low * at_high < 0:
            for _ in range(45):
                middle = (low + high) / 2
                value = difference(middle)
                if at_low * value <= 0:
                    high = middle
                else:
                    low, at_low = middle, value
            total += low
            count += 1
    if count != 3 or abs(total - round(total)) > 1e-3:
        raise ValueError("not three values with an integer sum")
    return round(total)


print(solve())
