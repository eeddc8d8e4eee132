"""Runs the hidden tests. Ours, and alone in its sandbox.

The solution lives in another process of another sandbox. Importing it here gives a stand-in whose
functions ask that process and turn its answers into plain builtin data, so no code of the solution
ever runs beside an assertion: it cannot patch, compare, exit or look around here. Every assertion
is counted; what was counted is reported at the end behind a secret that only this program knows.

The tests are run once more with the solution in this very process, alone in another sandbox. That is worth
nothing by itself, since there the solution can do all of that; but stand-ins show less than Python does (which
objects are one and the same, what is a copy), so what is right must hold in Python as it is too, and what holds
there may be right though stand-ins fail, unless plain data alone refuted it.
"""

import dataclasses
import importlib.abc
import importlib.machinery

MAX_REPORT = 1 << 18


class RemoteModule(types.ModuleType):
    """A module of the solution: what is set in it is set there."""

    def __setattr__(self, name, value):
        # A module inside a package is set by Python itself.
        if name.startswith("__") or isinstance(value, RemoteModule):
            return super().__setattr__(name, value)
        ask({"op": "set", "target": {"ref": self.__number__}, "name": name, "args": pack([value])}, "")

    def __getattr__(self, name):
        if name.startswith("__") and name not in FACTS:
            raise AttributeError(name)
        return ask({"op": "get", "target": {"ref": self.__number__}, "name": name}, name)

    def __dir__(self):
        return self.__all__


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the solution's modules."""

    def __init__(self, modules, reading, are_own=False):
        self.modules, self.reading, self.are_own, self.functions = modules, reading, are_own, {}

    def find_spec(self, name, path=None, target=None):
        if first_part(name) in self.modules:
            return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec):
        return RemoteModule(spec.name)

    def exec_module(self, module):
        facts = ask({"op": "import", "name": module.__name__, "own": self.are_own}, "")
        try:
            number, is_package, text = numbered(facts["module"]), facts["package"], facts["doc"]
            names, functions = ([it for it in facts[key] if type(it) is str] for key in ("names", "functions"))
        except (NotPlain, KeyError, TypeError):
            raise give_up("the solution's process answers nonsense") from None
        if is_package:
            module.__path__ = []
        module.__number__, module.__doc__, module.__file__ = number, text, f"{module.__name__.replace('.', '/')}.py"
        module.__all__ = [it for it in names if self.reading.may_give(it)]
        self.functions[module.__name__] = functions

    def functions_of(self, name):
        importlib.import_module(name)
        return self.functions.get(name, [])


class Together:
    """The solution's modules, in this process."""

    def __init__(self, reading):
        self.reading = reading
        sys.path.insert(0, os.getcwd())

    def limit_stars(self):
        """A star gives no builtin and no name that the tests bind, here as with stand-ins."""
        for module in [importlib.import_module(it) for it, name in self.reading.taken if name == "*"]:
            public = getattr(module, "__all__", [it for it in vars(module) if not it.startswith("_")])
            module.__all__ = [it for it in public if self.reading.may_give(it)]

    def functions_of(self, name):
        values = vars(importlib.import_module(name)).items()
        return [it for it, value in values if isinstance(value, types.FunctionType) and value.__module__ == name and not it.startswith("_")]


def provide_modules(reading):
    """Makes the solution's modules importable: after all others, unless the tests can only mean the solution's."""
    finder = StandIn({*reading.modules, reading.main}, reading)
    sys.meta_path.append(finder)
    sys.meta_path.insert(0, StandIn(reading.hiding, reading, True))
    provide_dataclasses()
    provide_seed()
    return finder


def provide_names(reading, tests):
    """Names that the tests use without importing them are the solution's, if it defines them."""
    if reading.taken or not reading.free:
        return
    module = importlib.import_module(reading.main)
    for name in set(reading.free) & set(dir(module)):
        vars(tests)[name] = getattr(module, name)


def provide_dataclasses():
    """What Python does with dataclasses, for those of the solution too."""

    def known(name, work):
        own = getattr(dataclasses, name)
        setattr(dataclasses, name, lambda it, **more: work(it, **more) if issubclass(type(it), Remote) else own(it, **more))

    def asked(name):
        return lambda it, **more: ask({"op": name, "target": it.remote_reference(), "kwargs": pack(more)}, f"{name}()")

    def fields(it):
        names = it.remote_fields if type(it) is RemoteClass else it.remote_class.remote_fields
        return tuple(types.SimpleNamespace(name=name) for name in names)

    for name in ("asdict", "astuple", "replace"):
        known(name, asked(name))
    known("fields", fields)
    known("is_dataclass", lambda it: (it if type(it) is RemoteClass else it.remote_class or it).remote_fields is not None)


def provide_seed():
    """Numbers that the solution draws follow from the tests' seed too."""
    own = random.seed

    def seed(*args):
        own(*args)
        ask({"op": "seed", "args": pack(list(args))}, "")

    random.seed = seed


def run_check(tests, finder):
    """Calls a `check` that the script only defines with the function that can be meant."""
    check_function = tests.get("check")
    if not isinstance(check_function, types.FunctionType) or "check" in entered:
        return
    main = finder.reading.main
    functions = finder.functions_of(main)
    # Which of several is meant, the task says.
    functions = [it for it in functions if it in finder.reading.named] or functions if len(functions) > 1 else functions
    if len(functions) != 1:
        found = ", ".join(functions) or "none"
        raise give_up(f"the tests define `check` and do not say for which function of the solution ({found})")
    check_function(getattr(importlib.import_module(main), functions[0]))


def read(job):
    """The tests and whose their names are; none where the text alone shows that nobody can be judged by them."""
    try:
        tree = Executed().visit(ast.parse(job["test_code"], "tests.py"))
        reading = Reading(tree, set(job["named"]), set(job["modules"]))
        reason = why_unusable(reading)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = f"the tests are no Python: {type(error).__name__}: {error}"
    if reason is not None:
        Ending.unusable = reason
        return None
    Ending.is_plain = is_plain(tree, reading)
    telling.update(telling_names(tree))
    touching.update(touching_lines(reading))
    return reading


def run(job):
    """Runs the script, and the test functions and cases that it only defines."""
    reading = read(job)
    if reading is None:
        return
    for name in reading.hiding:
        sys.modules.pop(name, None)
    tests = types.ModuleType("__main__")
    is_together = job["together"]
    finder = Together(reading) if is_together else provide_modules(reading)
    provide_pytest(vars(tests))
    provide_unittest(vars(tests))
    sys.modules["__main__"] = tests
    vars(tests).update(__check__=check, __check_equal__=check_equal, __check_raised__=check_raised, __check_call__=check_call)
    vars(tests).update(__hold__=hold, __release__=release, __type_of__=type if is_together else type_of)
    vars(tests).update(__entered__=entered.add, __file__=os.path.join(os.getcwd(), "tests.py"))
    if is_together:
        stage(finder.limit_stars)
    stage(run_script, reading, tests)
    stage(run_hooks_and_defined, vars(tests))
    stage(run_check, vars(tests), finder)


def run_script(reading, tests):
    first, rest = divide(reading)
    future = [it for it in first if isinstance(it, ast.ImportFrom) and it.module == "__future__"]
    first, rest = map(compiled, (first, [*future, *rest]))
    exec(first, vars(tests))
    provide_names(reading, tests)
    exec(rest, vars(tests))


def compiled(statements):
    tree = Counted(list(statements)).visit(ast.Module(statements, []))
    return compile(ast.fix_missing_locations(tree), "tests.py", "exec")


def run_hooks_and_defined(tests):
    with contextlib.ExitStack() as stack:
        run_hooks(tests.get, "setup_module", "teardown_module", stack)
        with shared_fixtures:
            run_defined(tests)


def stage(work, *args):
    """A part of the run; how it ends is noted, and the next one follows."""
    is_error = False
    try:
        work(*args)
    except BaseException as error:
        is_error = note(error)
    settle(is_error)


def note(error):
    """Remembers how a part of the tests ended, unless failed assertions say it; whether that is an error."""
    is_of_solution = getattr(error, "is_of_solution", False)
    is_end = isinstance(error, SystemExit) and not is_of_solution and (error.code in (None, 0) or counts[False] > 0)
    if is_end or (isinstance(error, (AssertionError, Skipped)) and counts[False]):
        return False
    try:
        traceback.print_exception(type(error), error, error.__traceback__, limit=-3)
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        # It holds something of the solution that does not want to be printed.
        text = type(error).__name__
    note_text(text)
    return True


def note_text(problem):
    """Why the tests did not come to their end: it is their own fault as long as the solution was not asked anything."""
    if Last.n_asked == 0:
        Ending.unusable = Ending.unusable or f"the tests fail by themselves: {problem[:2000]}"
    Ending.problem = Ending.problem or problem[:2000]


def report():
    """What was found, in bounded bytes."""
    settle_doubts()
    problem = Ending.unusable or Ending.failure or Ending.problem
    if problem is None and not any(counts.values()):
        problem = "the tests made no assertion"
    facts = {"passed": counts[True], "failed": counts[False], "error": problem, "unusable": Ending.unusable is not None}
    facts["refuted"] = Ending.is_refuted
    shown = listed
    while True:
        text = json.dumps({**facts, "assertions": shown}, ensure_ascii=False).encode(errors="replace")
        if len(text) <= MAX_REPORT:
            return text
        shown = shown[: len(shown) // 2]


def main():
    job = json.loads(incoming.readline())
    stage(run, job)
    sys.stdout.flush()
    with os.fdopen(os.dup(2), "wb") as output:
        output.write(b"\n" + job["secret"].encode() + report() + b"\n")
    os._exit(0)


main()
