"""For each longest side count the ways to split the rest."""


def solve(p=100):
    count = 0
    for c in range(-(-p // 3), (p - 1) // 2 + 1):
        rest = p - c
        count += c - (rest + 1) // 2 + 1  # the second longest runs from half the rest up to c
    return count


print(solve())
