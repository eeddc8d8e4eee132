from solution import merge_intervals


def merge(intervals):
    return [list(interval) for interval in merge_intervals(intervals)]


assert merge([[1, 3], [2, 6], [8, 10]]) == [[1, 6], [8, 10]]
assert merge([[1, 4], [4, 5]]) == [[1, 5]]
assert merge([]) == []
assert merge([[5, 7]]) == [[5, 7]]
assert merge([[8, 10], [1, 3], [2, 6]]) == [[1, 6], [8, 10]]
assert merge([[1, 10], [2, 3], [4, 5]]) == [[1, 10]]
assert merge([[1, 2], [3, 4]]) == [[1, 2], [3, 4]]
assert merge([[0, 0], [0, 0]]) == [[0, 0]]
assert merge([[-5, -1], [-3, 2], [10, 12]]) == [[-5, 2], [10, 12]]
assert merge([[1, 4], [0, 4]]) == [[0, 4]]
assert merge([[1, 4], [0, 0]]) == [[0, 0], [1, 4]]
argument = [[3, 5], [1, 4]]
merge(argument)
assert argument == [[3, 5], [1, 4]]
assert merge([[2 * i, 2 * i + 1] for i in range(2000)]) == [[2 * i, 2 * i + 1] for i in range(2000)]
assert merge([[i, i + 1] for i in range(2000, 0, -1)]) == [[1, 2001]]
