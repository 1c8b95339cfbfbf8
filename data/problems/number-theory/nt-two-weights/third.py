"""In each residue class modulo a, the least that can be made is a multiple of b."""


def solve(a=13, b=29):
    least = [0] * a
    for k in range(a):
        least[k * b % a] = k * b
    return max(least) - a + sum(value // a for value in least)


print(solve())
