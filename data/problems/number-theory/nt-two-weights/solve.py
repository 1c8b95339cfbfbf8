"""Mark what can be made."""


def solve(a=13, b=29):
    made = [True] + [False] * (a * b)
    for total in range(1, a * b + 1):
        made[total] = (total >= a and made[total - a]) or (total >= b and made[total - b])
    missing = [total for total, possible in enumerate(made) if not possible]
    return missing[-1] + len(missing)


print(solve())
