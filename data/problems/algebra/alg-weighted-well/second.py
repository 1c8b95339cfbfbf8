"""Put the well at the median person."""


def solve(n=14):
    people = [k for k in range(1, n + 1) for _ in range(k)]
    well = people[len(people) // 2]
    return sum(abs(person - well) for person in people)


print(solve())
