"""Extend messages signal by signal, remembering the count and whether the last signal was long."""


def solve(q=3, n=7, k=2):
    states = {(0, False): 1}
    for _ in range(n):
        grown = {}
        for (count, was_long), ways in states.items():
            moves = [(count, True, 1), (count + was_long, False, 1), (count, False, q - 2)]
            for new_count, is_long, times in moves:
                key = (new_count, is_long)
                grown[key] = grown.get(key, 0) + ways * times
        states = grown
    return sum(ways for (count, _), ways in states.items() if count == k)


print(solve())
