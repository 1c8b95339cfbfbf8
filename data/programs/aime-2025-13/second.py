def solve(drawn=25, quadrants=4):
    # By hand for four quadrants: a chord meets 4/3 diameters, two chords meet with probability 17/36.
    if quadrants != 4:
        raise ValueError("worked out for four quadrants only")
    twelfths = 72 * (4 + drawn) + 96 * drawn + 17 * drawn * (drawn - 1)
    if twelfths % 72:
        raise ValueError("not an integer")
    return twelfths // 72


print(solve())
