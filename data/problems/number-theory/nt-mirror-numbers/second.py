"""Build the mirror numbers from their first halves."""


def solve(n=20000, b=5):
    count, half = 0, 1
    while True:
        digits, rest = [], half
        while rest:
            digits.append(rest % b)
            rest //= b
        whole = digits[::-1] + digits
        short = digits[::-1] + digits[1:]
        values = []
        for number in (short, whole):
            value = 0
            for digit in number:
                value = value * b + digit
            values.append(value)
        if min(values) > n:
            return count
        count += sum(value <= n for value in values)
        half += 1


print(solve())
