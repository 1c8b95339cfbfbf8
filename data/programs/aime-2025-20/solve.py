def solve(a=84, b=60, c=36, second=2, third=3):
    # The circle is the nine-point circle; G, H and J are the feet of the altitudes.
    de = 2 * c  # angle DFE equals angle C
    hj = 2 * (180 - 2 * a)  # D is the centre of the circle through B, J, H and C, so angle HDJ is 180 - 2 A
    fg = 2 * c  # DF is parallel to CA, so angle FDG equals angle C
    return de + second * hj + third * fg


print(solve())
