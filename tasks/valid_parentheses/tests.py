from solution import valid_parentheses

assert valid_parentheses("([]{})") is True
assert valid_parentheses("(]") is False
assert valid_parentheses("a(b)c") is True
assert valid_parentheses("") is True
assert valid_parentheses("no brackets") is True
assert valid_parentheses("(") is False
assert valid_parentheses(")") is False
assert valid_parentheses("([)]") is False
assert valid_parentheses("{[()()]}[]") is True
assert valid_parentheses("(()") is False
assert valid_parentheses("())") is False
assert valid_parentheses(")(") is False
assert valid_parentheses("f(x[0], {1: 2})") is True
assert valid_parentheses("(" * 2000 + ")" * 2000) is True
assert valid_parentheses("(" * 2000 + ")" * 1999) is False
