def solve(a=84, b=60, c=36, second=2, third=3):
    # Seen from the centre of the nine-point circle, the midpoint opposite a corner at angle t lies at t + 180, and the foot at
    # (the sum of the other two angles) - t + 180. Whole degrees throughout.
    at = {"A": 0, "B": 2 * c, "C": 2 * c + 2 * a}

    def foot(corner):
        return sum(at.values()) - 2 * at[corner]

    def arc(p, q):
        turn = (p - q) % 360
        return min(turn, 360 - turn)

    de = arc(at["A"], at["B"])
    hj = arc(foot("B"), foot("C"))
    fg = arc(at["C"], foot("A"))
    return de + second * hj + third * fg


print(solve())
