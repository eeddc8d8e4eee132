"""Runs the hidden tests. Ours, and alone in its sandbox.

The solution lives in another process of another sandbox. Importing it here gives a stand-in whose
functions ask that process and turn its answers into plain builtin data, so no code of the solution
ever runs beside an assertion: it cannot patch, compare, exit or look around here. Every assertion
is counted; what was counted is reported at the end behind a secret that only this program knows.
"""

import ast
import builtins
import importlib.abc
import importlib.machinery
import traceback

incoming, outgoing = take_over()
ourselves = sys.modules["__main__"]

MAX_LISTED = 500
MAX_DETAIL = 300


class SolutionError(Exception):
    """The solution did something that no test can judge."""


# Stand-ins for what stays with the solution.


class Remote:
    """Something of the solution; it can be used, but it never decides an assertion."""

    def __init__(self, number):
        object.__setattr__(self, "remote_number", number)

    def remote_refuse(self, *_):
        raise SolutionError("the tests compare an object of the solution; only plain data is compared")

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = remote_refuse
    __hash__ = object.__hash__

    def __eq__(self, other):
        return True if self is other else self.remote_refuse()

    def __ne__(self, other):
        return False if self is other else self.remote_refuse()


class RemoteFunction(Remote):
    def __call__(self, *args, **kwargs):
        return call(self.remote_number, args, kwargs)


class RemoteIterator(Remote):
    def __iter__(self):
        return self

    def __next__(self):
        return ask({"op": "next", "target": self.remote_number})


class RemoteObject(Remote):
    """An object or a class of the solution that the tests name."""

    def remote_special(self, name, *args):
        return ask({"op": name, "target": self.remote_number, "args": pack(list(args))})

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return ask({"op": "get", "target": self.remote_number, "name": name})

    def __setattr__(self, name, value):
        ask({"op": "set", "target": self.remote_number, "name": name, "args": pack([value])})

    def __call__(self, *args, **kwargs):
        return call(self.remote_number, args, kwargs)

    def __len__(self):
        return plain(self.remote_special("__len__"), int)

    def __contains__(self, item):
        return plain(self.remote_special("__contains__", item), bool)

    def __str__(self):
        return plain(self.remote_special("__str__"), str)

    def __repr__(self):
        return plain(self.remote_special("__repr__"), str)

    def __instancecheck__(self, other):
        return isinstance(other, RemoteObject) and classes.get(self.remote_number) in kinds.get(other.remote_number, ())


def forward(name):
    def method(self, *args):
        return self.remote_special(name, *args)

    return method


for operation in (
    "iter getitem setitem delitem add sub mul truediv floordiv mod pow neg pos abs invert and or xor "
    "radd rsub rmul iadd isub enter exit next"
).split():
    setattr(RemoteObject, f"__{operation}__", forward(f"__{operation}__"))


def plain(value, kind):
    if type(value) is not kind:
        raise SolutionError(f"the solution answered {type(value).__name__} where {kind.__name__} belongs")
    return value


remotes, callbacks, exceptions = {}, [], {}
# Names of the solution's classes by number, those of its objects' classes, and those the tests name.
classes, kinds, named, identifiers = {}, {}, set(), set()


def once(kind, number):
    if type(number) is not int:
        raise NotPlain("the solution sent something unreadable")
    return remotes.setdefault((kind, number), kind(number))


def resolve(tag, body):
    if tag == "f":
        return once(RemoteFunction, body)
    if tag == "it":
        return once(RemoteIterator, body)
    if tag == "cb":
        return callbacks[body]
    if tag == "bt" and isinstance(getattr(builtins, body, None), type):
        return getattr(builtins, body)
    if tag == "k":
        return resolve_class(*body)
    if tag == "o" and named.intersection(body[1]):
        kinds[body[0]] = body[1]
        return once(RemoteObject, body[0])
    raise NotPlain("the solution returned an object that is no plain data")


def resolve_class(number, name, bases):
    """A class of the solution. Its objects are let through only if the tests name it."""
    if bases is not None:
        return exception_named(bases)
    if name in identifiers:
        named.add(name)
    classes[number] = name
    return once(RemoteObject, number)


def exception_named(names):
    """The builtin exception of that name, or one made here with the nearest builtin one as base."""
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind if name == names[0] else exceptions.setdefault(names[0], type(names[0], (kind,), {}))
    return SolutionError


def refer(value):
    if isinstance(value, Remote):
        return {"ref": value.remote_number}
    if isinstance(value, type) and getattr(builtins, value.__name__, None) is value:
        return {"bt": value.__name__}
    if callable(value):
        callbacks.append(value)
        return {"cb": len(callbacks) - 1}
    raise NotPlain(f"a test passes a {type(value).__name__}, which cannot be sent to the solution")


def pack(value):
    return encode(value, refer)


# Asking the solution.


def exchange(question):
    """The solution's whole answer, once its calls of the tests' own functions are served."""
    send(outgoing, question)
    while True:
        line = incoming.readline()
        if not line.endswith(b"\n"):
            raise SolutionError("the solution ended its process")
        answer = json.loads(line)
        if "callback" not in answer:
            return answer
        run_callback(answer)


def run_callback(message):
    try:
        args = decode(message["args"], resolve)
        kwargs = decode(message["kwargs"], resolve)
        reply = {"returned": pack(callbacks[message["callback"]](*args, **kwargs))}
    except Exception:
        reply = {"raised": True}
    send(outgoing, reply)


UNREADABLE = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, NotPlain)


def unreadable(error):
    reason = str(error) if isinstance(error, NotPlain) else f"its process answers nonsense ({type(error).__name__})"
    return SolutionError(reason)


def ask(question, after=lambda answer: None):
    """What the solution answers, as a value or an exception."""
    try:
        answer = exchange(question)
        problem = raised(answer, question["op"]) if "error" in answer else None
        value = decode(answer["value"], resolve) if problem is None else None
        if problem is None:
            after(answer)
    except UNREADABLE as error:
        raise unreadable(error) from None
    if problem is not None:
        raise problem
    return value


def raised(answer, operation):
    """What the solution raised, as a builtin exception or one made here."""
    names = [name for name in answer["error"] if type(name) is str]
    if names[0] == "StopIteration" and operation in ("next", "__next__"):
        return StopIteration()
    kind = exception_named(names)
    # Raised from anything else, these would quietly end a loop of the tests.
    if kind is SolutionError or issubclass(kind, (StopIteration, StopAsyncIteration)):
        return SolutionError(f"the solution raised {names[0]}")
    try:
        return kind(*decode(answer["details"], resolve))
    except Exception:
        return kind(str(answer["text"]))


def call(number, args, kwargs):
    args = list(args)

    def after(answer):
        # Functions may work on their arguments in place; tests look at them afterwards.
        for before, now in zip(args, decode(answer["args"], resolve)):
            refresh(before, now)
        now = decode(answer["kwargs"], resolve)
        for name, before in kwargs.items():
            refresh(before, now[name])

    return ask({"op": "call", "target": number, "args": pack(args), "kwargs": pack(kwargs)}, after)


def refresh(old, new):
    """Makes a container that was changed by the solution look as it looks there."""
    if type(old) is not type(new):
        return
    if isinstance(old, list):
        old[:] = [kept(before, now) for before, now in zip(old, new)] + new[len(old):]
    elif isinstance(old, dict):
        entries = [(key, kept(old[key], now) if key in old else now) for key, now in new.items()]
        old.clear()
        old.update(entries)
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    elif isinstance(old, (bytearray, collections.deque)):
        old.clear()
        old.extend(new)


def kept(before, now):
    """A container inside a container stays the same object, so that others who hold it see the change."""
    if isinstance(before, (list, dict, set, bytearray)) and type(before) is type(now):
        refresh(before, now)
        return before
    return now


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the solution's modules when nothing else has that name."""

    def __init__(self, modules):
        self.modules = modules

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.modules:
            return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        facts = ask({"op": "import", "name": module.__name__})
        number, names = facts["module"], [name for name in facts["names"] if type(name) is str]
        if facts["package"]:
            module.__path__ = []

        def get(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return ask({"op": "get", "target": number, "name": name})

        module.__getattr__ = get
        module.__all__ = names


# Counting assertions.

listed = []
counts = {True: 0, False: 0}


def check(line, text, holds, detail=""):
    """Counts an assertion."""
    holds = bool(holds)
    counts[holds] += 1
    if len(listed) < MAX_LISTED:
        listed.append({"line": line, "text": text[:MAX_DETAIL], "passed": holds, "detail": "" if holds else detail})
    return holds


def check_equal(line, text, left, right):
    holds = left == right
    return check(line, text, holds, f"{short(left)} != {short(right)}")


def short(value):
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= MAX_DETAIL else text[:MAX_DETAIL] + "..."


class Counted(ast.NodeTransformer):
    """Has every assertion counted. Those of the script itself do not end it, so that all are seen."""

    def __init__(self, top):
        self.top = top

    def visit_Assert(self, node):
        text = ast.unparse(node.test)
        name, values = "__check__", [node.test]
        if isinstance(node.test, ast.Compare) and [type(op) for op in node.test.ops] == [ast.Eq]:
            name, values = "__check_equal__", [node.test.left, node.test.comparators[0]]
        constants = [ast.Constant(node.lineno), ast.Constant(text)]
        counted = ast.Call(ast.Name(name, ast.Load()), constants + values, [])
        if node in self.top:
            return ast.copy_location(ast.Expr(counted), node)
        message = node.msg or ast.Constant(text)
        failure = ast.Raise(ast.Call(ast.Name("AssertionError", ast.Load()), [message], []), None)
        return ast.copy_location(ast.If(ast.UnaryOp(ast.Not(), counted), [failure], []), node)


def identifiers_of(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name.split(".")[-1]


# Running tests.


def run(code):
    """Runs the script, and the test functions and cases that it only defines."""
    tree = ast.parse(code, "tests.py")
    identifiers.update(identifiers_of(tree))
    tree = ast.fix_missing_locations(Counted(list(tree.body)).visit(tree))
    tests = types.ModuleType("__main__")
    tests.__check__, tests.__check_equal__ = check, check_equal
    sys.modules["__main__"] = tests
    provide_pytest()
    without_unittest_main()
    exec(compile(tree, "tests.py", "exec"), vars(tests))
    if not any(counts.values()):
        run_defined(vars(tests))


def run_defined(tests):
    import unittest

    for name, value in list(tests.items()):
        if name.startswith("test") and isinstance(value, types.FunctionType):
            for arguments in getattr(value, "parameters", [{}]):
                attempt(value, arguments)
        elif isinstance(value, type) and issubclass(value, unittest.TestCase):
            run_case(value)
        elif isinstance(value, type) and name.startswith("Test"):
            for method in [it for it in dir(value) if it.startswith("test")]:
                attempt(getattr(value(), method), {})


def attempt(function, arguments):
    """A failed assertion ends its own function only."""
    before = counts[False]
    try:
        function(**arguments)
    except AssertionError as error:
        if counts[False] == before:
            check(0, function.__name__, False, str(error)[:MAX_DETAIL])


def run_case(kind):
    import unittest

    for case in unittest.defaultTestLoader.loadTestsFromTestCase(kind):
        result = unittest.TestResult()
        case.run(result)
        for _, text in result.errors:
            raise SolutionError(f"{case.id()}: {text.strip().splitlines()[-1]}")
        detail = result.failures[0][1].strip().splitlines()[-1] if result.failures else ""
        check(0, case.id(), not result.failures, detail[:MAX_DETAIL])


def without_unittest_main():
    import unittest

    # Cases are run one by one above, so that each is counted.
    unittest.main = lambda *_, **__: None


class Raises:
    """`pytest.raises`, counted as an assertion."""

    def __init__(self, expected, match=None):
        self.expected, self.match, self.value = expected, match, None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        import re

        self.value = error
        if kind is None:
            check(0, f"raises {self.expected}", False, "nothing was raised")
            raise AssertionError("nothing was raised")
        if not issubclass(kind, self.expected):
            return False
        fits = self.match is None or re.search(self.match, str(error)) is not None
        if not check(0, f"raises {self.expected}", fits, short(error)):
            raise AssertionError(f"{error} does not match {self.match}")
        return True


class Approx:
    """`pytest.approx` for numbers."""

    def __init__(self, value, rel=None, abs=None):
        self.value, self.tolerance = value, max((rel or 1e-6) * builtins.abs(value), abs or 1e-12)

    def __eq__(self, other):
        return isinstance(other, (int, float)) and abs(other - self.value) <= self.tolerance

    def __repr__(self):
        return f"approx({self.value})"


def approx(value, rel=None, abs=None):
    if isinstance(value, (list, tuple)):
        return type(value)(Approx(item, rel, abs) for item in value)
    return Approx(value, rel, abs)


def raises(expected, *args, match=None, **kwargs):
    if not args:
        return Raises(expected, match)
    with Raises(expected, match) as info:
        args[0](*args[1:], **kwargs)
    return info


def parametrize(names, rows, **_):
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

    def decorate(function):
        function.parameters = [dict(zip(names, row if len(names) > 1 else [row])) for row in rows]
        return function

    return decorate


def provide_pytest():
    """The few things of pytest that plain test scripts use, whether it is installed or not."""
    pytest = types.ModuleType("pytest")
    pytest.raises, pytest.approx = raises, approx
    pytest.mark = types.SimpleNamespace(parametrize=parametrize)
    pytest.main = lambda *_, **__: 0
    sys.modules["pytest"] = pytest


def problem_of(error):
    """What the report says about the end of the tests; nothing when failed assertions say it."""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return None
    if isinstance(error, AssertionError) and counts[False]:
        return None
    traceback.print_exc(limit=-3)
    return f"{type(error).__name__}: {error}"[:2000]


def main():
    job = json.loads(incoming.readline())
    sys.meta_path.append(StandIn(set(job["modules"])))
    problem = None
    try:
        run(job["test_code"])
    except BaseException as error:
        problem = problem_of(error)
    sys.stdout.flush()
    report = {"passed": counts[True], "failed": counts[False], "error": problem, "assertions": listed}
    with os.fdopen(os.dup(2), "wb") as output:
        output.write(f"\n{job['secret']}{json.dumps(report)}\n".encode())
    os._exit(0)


main()
