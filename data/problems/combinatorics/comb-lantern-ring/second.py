"""Fix the first colour and walk around, keeping apart whether the colour is the first one."""


def solve(n=6, k=4):
    same, other = 1, 0
    for _ in range(n - 1):
        same, other = other, same * (k - 1) + other * (k - 2)
    return k * other


print(solve())
