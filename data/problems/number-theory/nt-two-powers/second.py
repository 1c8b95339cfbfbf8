"""Find where the powers begin to repeat and jump ahead."""


def tail(base, n, m):
    seen, powers = {}, []
    value = 1 % m
    while value not in seen:
        seen[value] = len(powers)
        powers.append(value)
        value = value * base % m
    start, length = seen[value], len(powers) - seen[value]
    return powers[n] if n < start else powers[start + (n - start) % length]


def solve(a=7, b=13, n=2031, m=1000):
    return (tail(a, n, m) + tail(b, n, m)) % m


print(solve())
