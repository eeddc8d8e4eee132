from solution import fizzbuzz


def expected(n):
    words = []
    for i in range(1, n + 1):
        word = ("Fizz" if i % 3 == 0 else "") + ("Buzz" if i % 5 == 0 else "")
        words.append(word or str(i))
    return words


assert fizzbuzz(0) == []
assert fizzbuzz(1) == ["1"]
assert fizzbuzz(3) == ["1", "2", "Fizz"]
assert fizzbuzz(5) == ["1", "2", "Fizz", "4", "Buzz"]
assert fizzbuzz(15)[-1] == "FizzBuzz"
assert fizzbuzz(15) == expected(15)
assert all(isinstance(word, str) for word in fizzbuzz(20))
assert fizzbuzz(100) == expected(100)
assert fizzbuzz(1001) == expected(1001)
