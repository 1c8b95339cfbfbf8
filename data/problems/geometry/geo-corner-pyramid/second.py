"""Count the column above each point of the floor."""


def solve(a=15, b=18, c=20):
    count = 0
    for x in range(1, a):
        for y in range(1, b):
            room = a * b * c - x * b * c - y * a * c
            if room > 0:
                count += (room - 1) // (a * b)
    return count


print(solve())
