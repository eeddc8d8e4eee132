"""Runs the hidden tests. Ours, and alone in its sandbox.

The solution lives in another process of another sandbox. Importing it here gives a stand-in whose
functions ask that process and turn its answers into plain builtin data, so no code of the solution
ever runs beside an assertion: it cannot patch, compare, exit or look around here. Every assertion
is counted; what was counted is reported at the end behind a secret that only this program knows.
"""

import importlib.abc
import importlib.machinery
import inspect
import traceback

MAX_REPORT = 1 << 18
# What tests may need beside the solution, which is then no fault of the solution's.
KNOWN_PACKAGES = "numpy pandas scipy sympy hypothesis torch sklearn requests matplotlib networkx pydantic freezegun".split()


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the solution's modules."""

    def __init__(self, modules, are_own=False):
        self.modules, self.are_own, self.functions = modules, are_own, {}

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.modules:
            return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        facts = ask({"op": "import", "name": module.__name__, "own": self.are_own}, "")
        try:
            number, is_package = numbered(facts["module"]), facts["package"]
            names, functions = ([it for it in facts[key] if type(it) is str] for key in ("names", "functions"))
        except (NotPlain, KeyError, TypeError):
            raise give_up("the solution's process answers nonsense") from None
        if is_package:
            module.__path__ = []

        def get(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return ask({"op": "get", "target": number, "name": name}, name)

        module.__getattr__, module.__all__ = get, names
        self.functions[module.__name__] = functions


def own_modules(tree, modules):
    """Modules of the solution that hide one of Python's own: the tests take something from them that Python's lacks."""
    for name, wanted in names_wanted(tree).items():
        if name in modules and name in getattr(sys, "stdlib_module_names", sys.builtin_module_names):
            real = importlib.import_module(name)
            if not all(hasattr(real, it) for it in wanted):
                yield name


def provide_modules(tree, modules):
    """Makes the solution's modules importable: after all others, unless the tests can only mean the solution's."""
    own = set(own_modules(tree, modules))
    for name in own:
        sys.modules.pop(name, None)
    finder = StandIn(modules - own)
    sys.meta_path.append(finder)
    sys.meta_path.insert(0, StandIn(own, True))
    return finder


def provide_names(tree, tests, modules):
    """Names that the tests use without importing them are the solution's."""
    main = "solution" if "solution" in modules else min(modules) if len(modules) == 1 else None
    for name in free_names(tree) if main else []:
        with contextlib.suppress(AttributeError):
            vars(tests)[name] = getattr(importlib.import_module(main), name)


def run_check(tests, finder):
    """Calls a `check` that the script only defines with the function that can be meant."""
    check_function = tests.get("check")
    if not isinstance(check_function, types.FunctionType) or "check" in entered:
        return
    main = "solution" if "solution" in finder.modules else min(finder.modules, default="solution")
    module = importlib.import_module(main)
    functions = finder.functions.get(main, [])
    if len(functions) != 1:
        found = ", ".join(functions) or "none"
        raise cannot_judge(f"the tests define `check` and do not say for which function of the solution ({found})")
    check_function(getattr(module, functions[0]))


def read(code):
    try:
        tree = ast.parse(code, "tests.py")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise cannot_judge(f"the tests are no Python: {type(error).__name__}: {error}") from None
    if not makes_assertions(tree):
        raise cannot_judge("the tests make no assertion")
    if impossible_part(tree):
        raise cannot_judge(f"the tests {impossible_part(tree)}, which is not supported")
    telling.update(telling_names(tree))
    return tree


def run(code, modules):
    """Runs the script, and the test functions and cases that it only defines."""
    tree = read(code)
    tests = types.ModuleType("__main__")
    finder = provide_modules(tree, modules)
    provide_pytest(vars(tests))
    provide_unittest(vars(tests))
    sys.modules["__main__"] = tests
    vars(tests).update(
        __check__=check, __check_equal__=check_equal, __check_raised__=check_raised, __entered__=entered.add, __same__=same
    )
    stage(provide_names, tree, tests, modules)
    counted = ast.fix_missing_locations(Counted(list(tree.body)).visit(tree))
    stage(exec, compile(counted, "tests.py", "exec"), vars(tests))
    stage(run_hooks_and_defined, vars(tests))
    stage(run_check, vars(tests), finder)


def run_hooks_and_defined(tests):
    with contextlib.ExitStack() as stack:
        run_hooks(tests.get, "setup_module", "teardown_module", stack)
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
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in KNOWN_PACKAGES:
        cannot_judge(f"the tests need {error.name}, which is not installed")
    try:
        traceback.print_exception(type(error), error, error.__traceback__, limit=-3)
        note_text(f"{type(error).__name__}: {error}")
    except BaseException:
        # It holds something of the solution that does not want to be printed.
        note_text(type(error).__name__)
    return True


def note_text(problem):
    Ending.problem = Ending.problem or problem[:2000]


def report():
    """What was found, in bounded bytes."""
    settle_doubts()
    problem = Ending.unusable or Ending.failure or Ending.problem
    if problem is None and not any(counts.values()):
        problem = "the tests made no assertion"
    facts = {"passed": counts[True], "failed": counts[False], "error": problem, "unusable": Ending.unusable is not None}
    shown = listed
    while True:
        text = json.dumps({**facts, "assertions": shown}, ensure_ascii=False).encode(errors="replace")
        if len(text) <= MAX_REPORT:
            return text
        shown = shown[: len(shown) // 2]


def main():
    job = json.loads(incoming.readline())
    stage(run, job["test_code"], set(job["modules"]))
    sys.stdout.flush()
    with os.fdopen(os.dup(2), "wb") as output:
        output.write(b"\n" + job["secret"].encode() + report() + b"\n")
    os._exit(0)


main()
