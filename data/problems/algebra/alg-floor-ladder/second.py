"""Count the lattice points under the line row by row."""


def solve(a=7, b=11, n=50):
    count, row = 0, 1
    while row * b <= a * n:
        first = -(-row * b // a)  # the least k with a k / b >= row
        count += n - first + 1
        row += 1
    return count


print(solve())
