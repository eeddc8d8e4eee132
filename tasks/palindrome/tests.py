from solution import is_palindrome

assert is_palindrome("Level") is True
assert is_palindrome("A man, a plan, a canal: Panama") is True
assert is_palindrome("hello") is False
assert is_palindrome("") is True
assert is_palindrome(" ,.!?") is True
assert is_palindrome("a") is True
assert is_palindrome("ab") is False
assert is_palindrome("0P") is False
assert is_palindrome("12 3-21") is True
assert is_palindrome("No 'x' in Nixon") is True
assert is_palindrome("race a car") is False
assert is_palindrome("x" * 5000 + "y" + "x" * 5000) is True
assert is_palindrome("x" * 5000 + "yz" + "x" * 5000) is False
