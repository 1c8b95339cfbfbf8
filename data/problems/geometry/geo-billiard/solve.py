"""Follow the ball step by step."""


def solve(a=377, b=233):
    x = y = bounces = 0
    dx = dy = 1
    while True:
        x += dx
        y += dy
        at_x, at_y = x in (0, a), y in (0, b)
        if at_x and at_y:
            return bounces
        if at_x:
            dx = -dx
            bounces += 1
        if at_y:
            dy = -dy
            bounces += 1


print(solve())
