from solution import flatten

assert flatten([1, [2, [3, 4]], 5]) == [1, 2, 3, 4, 5]
assert flatten([]) == []
assert flatten([[], [[]], [[[]]]]) == []
assert flatten([1, 2, 3]) == [1, 2, 3]
assert flatten([[[[[[7]]]]]]) == [7]
assert flatten(["ab", ["cd"]]) == ["ab", "cd"]
assert flatten([(1, [2]), [None, False]]) == [(1, [2]), None, False]
assert flatten([{"a": [1]}, [{"b": 2}]]) == [{"a": [1]}, {"b": 2}]
argument = [1, [2, [3]]]
flatten(argument)
assert argument == [1, [2, [3]]]
deep = [0]
for i in range(1, 150):
    deep = [i, deep]
assert flatten(deep) == list(range(149, -1, -1))
wide = [[i, [i]] for i in range(3000)]
assert flatten(wide) == [i for i in range(3000) for _ in range(2)]
