def solve(numerator=25, denominator=11, index=2025, divisor=3, modulus=1000):
    # With x = m / n the next term is (m^2 - m n + n^2) / (divisor m n). The only common factor that ever appears is the
    # divisor, so m and n are kept modulo modulus * divisor^steps and lose one factor where it cancels.
    m, n = numerator, denominator
    kept = modulus * divisor**index
    for _ in range(index - 1):
        m, n = (m * m - m * n + n * n) % kept, divisor * m * n % kept
        if m % divisor == 0:
            m, n, kept = m // divisor, n // divisor, kept // divisor
    return (m + n) % modulus


print(solve())
