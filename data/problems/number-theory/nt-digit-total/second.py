"""Fix digits from the left, keeping whether the number is still bound by n."""

from functools import cache


def solve(n=5200, s=12):
    digits = list(map(int, str(n)))

    @cache
    def count(at, left, bound):
        if left < 0:
            return 0
        if at == len(digits):
            return int(left == 0)
        top = digits[at] if bound else 9
        return sum(count(at + 1, left - d, bound and d == top) for d in range(top + 1))

    return count(0, s, True) - (s == 0)


print(solve())
