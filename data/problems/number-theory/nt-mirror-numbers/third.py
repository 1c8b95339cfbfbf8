"""Count length by length; for the length of n compare its first half with its mirror."""


def solve(n=20000, b=5):
    digits, rest = [], n
    while rest:
        digits.append(rest % b)
        rest //= b
    digits.reverse()
    length = len(digits)
    count = sum((b - 1) * b ** ((k + 1) // 2 - 1) for k in range(1, length))
    front = digits[: (length + 1) // 2]
    half = 0
    for digit in front:
        half = half * b + digit
    count += half - b ** (len(front) - 1)
    mirrored = front + front[: length // 2][::-1]
    return count + (mirrored <= digits)


print(solve())
