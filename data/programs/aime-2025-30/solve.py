from math import isqrt


def solve(p=18, q=72, r=98):
    # The minimum is reached twice where (x-p)(x-q)(x-r)(x-k) - m x is the square of a quadratic. That is so for
    # sqrt(k) = sqrt(p) + sqrt(q) - sqrt(r) and the other two such sums; the squares of the three add up to this.
    products = (p * q, q * r, r * p)
    roots = [isqrt(product) for product in products]
    if any(root * root != product for root, product in zip(roots, products)):
        raise ValueError("the sum is not an integer")
    return (2 + 1) * (p + q + r) - 2 * sum(roots)


print(solve())
