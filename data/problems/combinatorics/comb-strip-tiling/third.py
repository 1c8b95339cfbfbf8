"""Lay all tilings down, tile by tile."""


def solve(a=2, b=3, n=6):
    def lay(free):
        if free == 0:
            return 1
        count = 0
        for _ in range(a):
            count += lay(free - 1)
        if free >= 2:
            for _ in range(b):
                count += lay(free - 2)
        return count

    return lay(n)


print(solve())
