from solution import two_sum

assert list(two_sum([2, 7, 11, 15], 9)) == [0, 1]
assert list(two_sum([1, 2, 3], 100)) == []
assert list(two_sum([3, 2, 4], 6)) == [1, 2]
assert list(two_sum([3, 3], 6)) == [0, 1]
assert list(two_sum([3], 6)) == []
assert list(two_sum([], 0)) == []
assert list(two_sum([-1, -2, -3, -4, -5], -8)) == [2, 4]
assert list(two_sum([0, 4, 3, 0], 0)) == [0, 3]
assert list(two_sum([5, 1, 9], 10)) == [1, 2]
numbers = [2 * i for i in range(20000)] + [1]
assert list(two_sum(numbers, 2 * 19999 + 1)) == [19999, 20000]
assert list(two_sum(numbers[:-1], 3)) == []
