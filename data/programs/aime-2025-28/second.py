def solve(numerator=25, denominator=11, index=2025, divisor=3, modulus=1000):
    # By hand where 3 divides m + n: then the sum s goes to s^2 / 3, so it is 3 (s / 3)^(2^(index - 1)).
    start = numerator + denominator
    if divisor != 3 or start % 3 or numerator % 3 == 0:
        raise ValueError("another case")
    return 3 * pow(start // 3, 2 ** (index - 1), modulus) % modulus


print(solve())
