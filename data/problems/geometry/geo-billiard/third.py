"""Mark the moments of the bounces off both kinds of sides until they coincide."""


def solve(a=377, b=233):
    next_a, next_b, bounces = a, b, 0
    while next_a != next_b:
        if next_a < next_b:
            next_a += a
        else:
            next_b += b
        bounces += 1
    return bounces


print(solve())
