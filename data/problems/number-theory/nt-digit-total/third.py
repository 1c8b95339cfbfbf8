"""For each prefix that falls below n, count the free digits by inclusion and exclusion."""

from math import comb


def free(length, total):
    if length == 0:
        return int(total == 0)
    count = 0
    for j in range(length + 1):
        left = total - 10 * j
        if left >= 0:
            count += (-1) ** j * comb(length, j) * comb(left + length - 1, length - 1)
    return count


def solve(n=5200, s=12):
    digits = list(map(int, str(n + 1)))
    count, used = 0, 0
    for at, digit in enumerate(digits):
        for smaller in range(digit):
            if s - used - smaller >= 0:
                count += free(len(digits) - at - 1, s - used - smaller)
        used += digit
    return count - (s == 0)


print(solve())
