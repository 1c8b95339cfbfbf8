"""Decide chair by chair, remembering how many chairs must stay free."""

from functools import cache


def solve(n=16, r=4, g=2):
    @cache
    def count(chair, left):
        if left == 0:
            return 1
        if chair >= n:
            return 0
        return count(chair + 1, left) + count(chair + g + 1, left - 1)

    return count(0, r)


print(solve())
