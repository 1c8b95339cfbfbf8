"""Write every number down."""


def solve(n=20000, b=5):
    count = 0
    for k in range(1, n + 1):
        mirrored, rest = 0, k
        while rest:
            mirrored = mirrored * b + rest % b
            rest //= b
        count += mirrored == k
    return count


print(solve())
