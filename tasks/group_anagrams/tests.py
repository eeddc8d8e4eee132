from solution import group_anagrams


def sorted_groups(groups):
    return sorted(sorted(group) for group in groups)


def expected(words):
    groups = {}
    for word in words:
        groups.setdefault("".join(sorted(word)), []).append(word)
    return sorted_groups(groups.values())


def check(words):
    return sorted_groups(group_anagrams(list(words))) == expected(words)


assert check(["eat", "tea", "bat"])
assert group_anagrams([]) == []
assert check(["eat", "tea", "tan", "ate", "nat", "bat"])
assert check([""])
assert check(["", ""])
assert check(["a"])
assert check(["aab", "abb", "aba", "bba"])
assert check(["abc", "abc", "cab"])
assert check(["Tea", "eat"])
assert check(["ab", "ba", "abab", "aabb"])
assert check([chr(97 + i % 7) + chr(97 + i % 5) + chr(97 + i % 3) for i in range(600)])
