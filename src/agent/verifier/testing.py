"""Finds and runs what test scripts define: functions, classes, cases; the common parts of pytest and unittest."""

import contextlib
import io
import itertools
import math
import re
import unittest


class Skipped(Exception):
    """A test that does not want to run."""


# Running what is defined.


def run_defined(tests):
    """Runs the test functions and cases that the script has not called itself."""
    before = set(entered)
    for name, value in list(tests.items()):
        # What is the solution's is no test, whatever it is called.
        if isinstance(value, Remote):
            continue
        if isinstance(value, type) and issubclass(value, unittest.TestCase):
            run_case(value, before)
        elif isinstance(value, type) and name.startswith("Test"):
            run_class(value, tests, before)
        elif isinstance(value, types.FunctionType) and name.startswith("test") and value.__qualname__ not in before:
            run_function(value, None, tests)


def run_class(kind, tests, before):
    for name, inner in vars(kind).items():
        if isinstance(inner, type) and name.startswith("Test"):
            run_class(inner, tests, before)
    with contextlib.ExitStack() as stack:
        run_hooks(kind, "setup_class", "teardown_class", stack)
        for name in [it for it in dir(kind) if it.startswith("test")]:
            found = inspect.getattr_static(kind, name)
            method = getattr(found, "__func__", found)
            if isinstance(method, types.FunctionType) and method.__qualname__ not in before:
                method.is_static = isinstance(found, staticmethod)
                run_function(method, kind, tests)


def run_function(function, kind, tests):
    if getattr(function, "is_skipped", False) or getattr(kind, "is_skipped", False):
        return
    for arguments in combinations(function, kind, tests):
        attempt(function, kind, tests, arguments)


def attempt(function, kind, tests, arguments):
    """A failed assertion ends its own function only, and so does an error."""
    failed, is_error = counts[False], False
    try:
        with contextlib.ExitStack() as stack:
            run_one(function, kind, tests, arguments, stack)
    except Skipped:
        pass
    except AssertionError as error:
        forgive(error)
        if counts[False] == failed:
            check(0, function.__name__, False, str(error)[:MAX_DETAIL])
    except Exception as error:
        is_error = True
        note(error)
    settle(is_error)


def run_one(function, kind, tests, arguments, stack):
    owner = kind() if kind else None
    fixtures = Fixtures(tests, owner, arguments, stack)
    run_hooks(tests.get, "setup_function", "teardown_function", stack)
    if owner is not None:
        run_hooks(owner, "setup_method", "teardown_method", stack)
        run_hooks(owner, "setup", "teardown", stack)
    fixtures.use_automatic(function, kind)
    itself = None if getattr(function, "is_static", False) else owner
    result = function(*([] if itself is None else [itself]), **fixtures.arguments_of(function, itself))
    if inspect.iscoroutine(result):
        __import__("asyncio").run(result)


def run_hooks(owner, before, after, stack):
    """Calls what comes before now, and what comes after when the stack ends."""
    find = owner if callable(owner) and not isinstance(owner, type) else lambda name: getattr(owner, name, None)
    first, last = find(before), find(after)
    if last is not None:
        stack.callback(call_hook, last)
    if first is not None:
        call_hook(first)


def call_hook(hook):
    needed = [it for it in inspect.signature(hook).parameters.values() if it.default is it.empty]
    hook(*[None for _ in needed])


# unittest.

plain_run = unittest.TestCase.run


class Failure(AssertionError):
    """A failed assertion of a case: remembered when it is made, whoever catches it."""

    def __init__(self, *args):
        super().__init__(*args)
        interrupted.append((0, str(args[0])[:MAX_DETAIL] if args else "", self))


def counted_run(case, result=None):
    """`TestCase.run`, whoever calls it: each case is an assertion."""
    mine = unittest.TestResult()
    entered.add((type(case), case._testMethodName))
    failed = counts[False]
    plain_run(case, mine)
    for _, text in mine.errors:
        note_text(f"{case.id()}: {last_line(text)}")
    settle(bool(mine.errors or mine.failures or mine.expectedFailures))
    if not mine.errors and not mine.skipped:
        holds = not mine.failures and not mine.unexpectedSuccesses and counts[False] == failed
        check(0, case.id(), holds, last_line(mine.failures[0][1]) if mine.failures else "")
    if result is not None:
        result.testsRun += 1
        for part in ("failures", "errors", "skipped"):
            getattr(result, part).extend(getattr(mine, part))
    return mine


def run_case(kind, before):
    cases = unittest.defaultTestLoader.loadTestsFromTestCase(kind)
    suite = unittest.TestSuite(case for case in cases if (kind, case._testMethodName) not in before)
    result = unittest.TestResult()
    suite.run(result)
    for place, text in result.errors:
        if not isinstance(place, unittest.TestCase):
            note_text(f"{kind.__name__}: {last_line(text)}")


def leave_expected(kind):
    """Has a context that expects exceptions say which one it took."""
    leave = kind.__exit__

    def leave_and_tell(self, exc_type, error, trace):
        taken = leave(self, exc_type, error, trace)
        if taken:
            forgive(error)
        return taken

    kind.__exit__ = leave_and_tell


def provide_unittest(tests):
    def main(*_, exit=True, **__):
        run_defined(tests)
        if exit:
            sys.exit(int(counts[False] > 0))

    unittest.TestCase.run, unittest.TestCase.failureException = counted_run, Failure
    unittest.main = main
    leave_expected(unittest.case._AssertRaisesContext)


# pytest: fixtures.


# What ends when all tests have run.
shared_fixtures = contextlib.ExitStack()


class Fixtures:
    """Makes what a test's arguments name."""

    def __init__(self, tests, owner, arguments, stack):
        self.tests, self.owner, self.stack = tests, owner, stack
        self.made = dict(arguments)

    def use_automatic(self, function, kind):
        names = [name for name, it in fixtures_in(self.tests, type(self.owner)) if it.is_automatic]
        for name in [*names, *getattr(kind, "uses", []), *getattr(function, "uses", [])]:
            self.get(name)

    def arguments_of(self, function, owner=None):
        parameters = list(inspect.signature(function).parameters.values())[n_given(function) + (owner is not None):]
        needed = [it for it in parameters if it.default is it.empty or it.name in self.made]
        return {it.name: self.get(it.name) for it in needed if it.kind not in (it.VAR_POSITIONAL, it.VAR_KEYWORD)}

    def get(self, name):
        if name not in self.made:
            self.made[name] = self.make(name)
        return self.made[name]

    def make(self, name):
        if name == "request":
            return types.SimpleNamespace(param=self.made.get("request.param"), addfinalizer=self.stack.callback)
        if name == "capsys":
            return self.stack.enter_context(Capsys())
        if name == "monkeypatch":
            return Monkeypatch(self.stack)
        return self.made_by(dict(fixtures_in(self.tests, type(self.owner)))[name], name)

    def made_by(self, fixture, name):
        key = f"{self.made.get(f'param of {name}')!r}"
        if fixture.scope != "function" and key in fixture.shared:
            return fixture.shared[key]
        is_method = self.owner is not None and fixture.is_method
        maker = Fixtures(self.tests, self.owner, self.made, self.stack)
        maker.made = self.made
        if fixture.params:
            self.made["request.param"] = self.made.get(f"param of {name}")
        arguments = maker.arguments_of(fixture.function, self.owner if is_method else None)
        value = fixture.function(*([self.owner] if is_method else []), **arguments)
        if inspect.isgenerator(value):
            generator, value = value, next(value)
            (self.stack if fixture.scope == "function" else shared_fixtures).callback(next, generator, None)
        fixture.shared[key] = value
        return value


def n_given(function):
    """How many arguments `patch` gives to a test that it decorates."""
    return sum(it.new is unittest.mock.DEFAULT and it.attribute_name is None for it in getattr(function, "patchings", []))


class Fixture:
    """A function that makes an argument of tests."""

    def __init__(self, function, scope="function", params=None, autouse=False, name=None, **_):
        self.function, self.scope, self.params, self.is_automatic = function, scope, params, autouse
        self.name, self.shared = name or function.__name__, {}
        self.is_method = "." in function.__qualname__ and "<locals>" not in function.__qualname__

    def __call__(self, *args):
        return self.function(*args)


def fixtures_in(tests, kind):
    """Fixtures by name; those of the class come last and win."""
    members = {name: inspect.getattr_static(kind, name, None) for name in dir(kind)}
    for value in [*tests.values(), *members.values()]:
        if isinstance(value, Fixture):
            yield value.name, value


def fixture(function=None, **options):
    return Fixture(function, **options) if function else lambda it: Fixture(it, **options)


class Capsys:
    """What was printed, by the tests and the solution."""

    def __enter__(self):
        self.out, self.err = io.StringIO(), io.StringIO()
        self.saved = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self.out, self.err
        return self

    def __exit__(self, *_):
        sys.stdout, sys.stderr = self.saved

    def readouterr(self):
        read = collections.namedtuple("CaptureResult", "out err")(self.out.getvalue(), self.err.getvalue())
        for stream in (self.out, self.err):
            stream.seek(0)
            stream.truncate()
        return read


class Monkeypatch:
    """Replaces attributes of the solution's modules, and what is passed on to the solution, until the test ends."""

    def __init__(self, stack):
        self.stack = stack

    def setattr(self, target, name, *value, **_):
        if isinstance(target, str):
            value, (target, _, name) = [name], target.rpartition(".")
            target = importlib.import_module(target)
        self.stack.callback(setattr, target, name, getattr(target, name))
        setattr(target, name, *value)


# pytest: parameters.


class Row:
    """`pytest.param`."""

    def __init__(self, *values, marks=(), **_):
        self.values, self.marks = values, marks if isinstance(marks, (list, tuple)) else [marks]

    def is_skipped(self):
        return any(getattr(mark(lambda: None), "is_skipped", False) for mark in self.marks)


def combinations(function, kind, tests):
    """The arguments of every run of a test: all its tables and fixtures with parameters, combined."""
    tables = [*getattr(function, "tables", []), *getattr(kind, "tables", [])]
    known = {name for table in tables for row in table for name in row}
    for name, it in dict(fixtures_in(tests, kind)).items():
        if it.params and name not in known and needs(function, name, tests, kind):
            tables.append([{f"param of {name}": row.values[0] if isinstance(row, Row) else row} for row in it.params])
    for rows in itertools.product(*tables):
        yield {name: value for row in rows for name, value in row.items()}


def needs(function, name, tests, kind, seen=()):
    """Whether a test's arguments lead to a fixture."""
    wanted = [*inspect.signature(function).parameters, *getattr(function, "uses", [])]
    found = dict(fixtures_in(tests, kind))
    return name in wanted or any(
        needs(found[it].function, name, tests, kind, (*seen, it)) for it in wanted if it in found and it not in seen
    )


def parametrize(names, rows, **_):
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    names = [name for name in names if name]
    rows = [row for row in rows if not (isinstance(row, Row) and row.is_skipped())]
    rows = [row.values if isinstance(row, Row) else row if len(names) > 1 else [row] for row in rows]

    def decorate(function):
        # The nearest decorator changes fastest; a class keeps its own table apart from its base's.
        function.tables = [*vars(function).get("tables", []), [dict(zip(names, row)) for row in rows]]
        return function

    return decorate


# pytest: the rest.


class Raises:
    """`pytest.raises`, counted as an assertion."""

    def __init__(self, expected, match=None):
        self.expected, self.pattern, self.value, self.type = expected, match, None, None

    @property
    def typename(self):
        return self.type.__name__

    def match(self, pattern):
        if re.search(pattern, str(self.value)) is None:
            raise Failure(f"{self.value} does not match {pattern}")
        return True

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.value, self.type = error, kind
        if kind is None:
            check(0, f"raises {self.expected}", False, "nothing was raised")
            raise AssertionError("nothing was raised")
        if not issubclass(kind, self.expected):
            return False
        forgive(error)
        fits = self.pattern is None or re.search(self.pattern, str(error)) is not None
        if not check(0, f"raises {self.expected}", fits, short(error)):
            raise AssertionError(f"{error} does not match {self.pattern}")
        return True


def raises(expected, *args, match=None, **kwargs):
    if not args:
        return Raises(expected, match)
    with Raises(expected, match) as info:
        args[0](*args[1:], **kwargs)
    return info


class Approx:
    """`pytest.approx` for numbers; a tolerance that is not finite tolerates nothing."""

    def __init__(self, value, rel=None, abs=None):
        relative = 0.0 if rel is None and abs is not None else 1e-6 if rel is None else rel
        tolerance = max(relative * builtins.abs(value), 1e-12 if abs is None else abs)
        self.value, self.tolerance = value, tolerance if math.isfinite(tolerance) else 0.0

    def __eq__(self, other):
        is_number = isinstance(other, (int, float, complex, decimal.Decimal, fractions.Fraction))
        return is_number and (other == self.value or abs(other - self.value) <= self.tolerance)

    def __repr__(self):
        return f"approx({self.value})"


class ApproxItems(list):
    """`pytest.approx` for lists and the like, of whatever type."""

    # An array leaves the comparison to this.
    __array_ufunc__ = None

    def __eq__(self, other):
        other = other.tolist() if hasattr(other, "tolist") else other
        return isinstance(other, (list, tuple)) and len(other) == len(self) and all(a == b for a, b in zip(self, other))


def approx(value, rel=None, abs=None, **_):
    if isinstance(value, (list, tuple)) or (type(value).__module__ == "numpy" and value.shape):
        return ApproxItems(approx(item, rel, abs) for item in value)
    if isinstance(value, dict):
        return {key: approx(item, rel, abs) for key, item in value.items()}
    return Approx(value, rel, abs) if isinstance(value, (int, float, complex, decimal.Decimal)) else value


def skip(reason="", **_):
    raise Skipped(reason)


def fail(reason="", **_):
    raise Failure(reason)


def import_or_skip(name, *_, **__):
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Skipped(name) from None


def skipping(holds):
    def decorate(test):
        test.is_skipped = holds
        return test

    return decorate


class Marks:
    """`pytest.mark`: what changes how a test runs is heeded, every other mark is a label."""

    parametrize = staticmethod(parametrize)

    def skip(self, test=None, **_):
        return skipping(True)(test) if callable(test) else skipping(True)

    xfail = skip

    def skipif(self, condition=False, **_):
        return skipping(bool(condition))

    def usefixtures(self, *names):
        def decorate(test):
            test.uses = [*getattr(test, "uses", []), *names]
            return test

        return decorate

    def __getattr__(self, _):
        return lambda *args, **__: args[0] if len(args) == 1 and callable(args[0]) else lambda test: test


PYTEST = {"raises": raises, "approx": approx, "param": Row, "fixture": fixture, "mark": Marks()}
PYTEST = {**PYTEST, "skip": skip, "fail": fail, "importorskip": import_or_skip, "main": None}
# What there is of each part that tests know by its name.
PARTS = {"pytest": PYTEST, "capsys": ["readouterr"], "monkeypatch": ["setattr"], "request": ["param", "addfinalizer"]}


def provide_pytest(tests):
    """What test scripts use of pytest, whether it is installed or not."""
    pytest = types.ModuleType("pytest")

    def main(*_, **__):
        run_defined(tests)
        return int(counts[False] > 0)

    vars(pytest).update(PYTEST, main=main)
    sys.modules["pytest"] = pytest
