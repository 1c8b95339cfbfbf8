def solve(coefficient=34, period=4):
    # By hand: where the coefficient is 2 more than a multiple of 4, all roots pair up but one, and the sum is
    # (1 + sqrt(1 + 4 n^2)) / (2 n).
    n = coefficient
    if period != 4 or n % 4 != 2:
        raise ValueError("another case")
    outside, inside = 1, 1 + 4 * n * n
    for f in range(2, 2 * n + 1):
        while inside % (f * f) == 0:
            inside //= f * f
            outside *= f
    return 1 + outside + inside + 2 * n


print(solve())
