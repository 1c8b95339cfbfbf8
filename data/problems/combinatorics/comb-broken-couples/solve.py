"""Pair the first free person with everybody else in turn."""


def solve(n=5, k=1):
    def pair(free, together):
        if not free:
            return int(together == k)
        first, *rest = free
        count = 0
        for i, partner in enumerate(rest):
            stays = together + (first // 2 == partner // 2)
            if stays <= k:
                count += pair(rest[:i] + rest[i + 1 :], stays)
        return count

    return pair(list(range(2 * n)), 0)


print(solve())
