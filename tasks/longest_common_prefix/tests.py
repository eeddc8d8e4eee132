from solution import longest_common_prefix

assert longest_common_prefix(["flower", "flow", "flight"]) == "fl"
assert longest_common_prefix(["dog", "car"]) == ""
assert longest_common_prefix([]) == ""
assert longest_common_prefix([""]) == ""
assert longest_common_prefix(["alone"]) == "alone"
assert longest_common_prefix(["same", "same"]) == "same"
assert longest_common_prefix(["abc", ""]) == ""
assert longest_common_prefix(["ab", "abc", "abcd"]) == "ab"
assert longest_common_prefix(["abcd", "abc", "ab"]) == "ab"
assert longest_common_prefix(["Abc", "abc"]) == ""
assert longest_common_prefix(["xa", "xb", "ya"]) == ""
assert longest_common_prefix(["\u00e9t\u00e9", "\u00e9tage"]) == "\u00e9t"
assert longest_common_prefix(["a" * 3000 + "b", "a" * 3000 + "c"]) == "a" * 3000
