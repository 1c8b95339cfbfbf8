"""Combine halves, as in a tournament."""


def solve(c=3, n=15, m=1000):
    def chain(low, high):
        if low == high:
            return low % m
        middle = (low + high) // 2
        x, y = chain(low, middle), chain(middle + 1, high)
        return (x + y + c * x * y) % m

    return chain(1, n)


print(solve())
