"""What the text of the tests tells before the solution runs: whose each name is, and whether they can be judged at all.

A name is the solution's only if the tests take it from a module of the solution: by its name, as an attribute
of the module, or by a star, which gives what the solution defines and neither a builtin nor a name that the
tests bind. Tests that take nothing so mean the solution by the names that nobody binds. A module is the
solution's if it is called `solution`, if the task names it, or if the tests take nothing from such a one and
it is no library. A library never comes from the solution, under whatever name it is known.
"""

# Packages that may be missing here: nobody's module is meant by such a name.
LIBRARIES = set(
    "numpy pandas scipy sympy hypothesis torch sklearn tensorflow keras jax requests matplotlib seaborn "
    "networkx pydantic freezegun pytest nose mock parameterized attr attrs yaml bs4 flask django fastapi starlette httpx aiohttp "
    "sqlalchemy tqdm PIL cv2 numba cython dateutil pytz arrow regex lxml simplejson ujson orjson toml tomli more_itertools toolz "
    "sortedcontainers gmpy2 mpmath nltk spacy faker responses psutil joblib dask polars pyarrow xarray statsmodels bitarray bs4 "
    "click typer rich jinja2 markdown redis pymongo boto3 cryptography jwt websockets anyio trio uvloop typing_extensions six".split()
)
# Letters of what people call a library: np, plt.
MAX_SHORT = 3
PYTHONS = {*sys.stdlib_module_names, *sys.builtin_module_names}

# What cannot reach a solution in another process, by what the tests use for it.
FOREIGN = {
    "inspect.getsource inspect.getsourcelines inspect.getsourcefile inspect.getfile": "reads the text of the solution",
    "doctest": "lets the solution judge itself",
    "os.environ os.putenv": "changes the environment",
    "subprocess os.system os.popen runpy multiprocessing": "runs a program",
    "threading concurrent.futures asyncio.create_task asyncio.ensure_future asyncio.wait_for asyncio.wait asyncio.timeout "
    "asyncio.TaskGroup": "does several things at once",
    "warnings.catch_warnings assertWarns assertWarnsRegex logging assertLogs assertNoLogs sys.argv gc tracemalloc "
    "sys.setrecursionlimit sys.getrefcount weakref": "looks into the interpreter of the tests",
    "sqlite3": "keeps what it opens in its own process",
    "socket urllib.request http.client http.server": "needs a network",
    "importlib.reload": "reloads the solution",
    "tempfile shutil glob os.listdir os.remove os.unlink os.mkdir os.makedirs os.rmdir os.rename os.walk os.scandir os.chdir "
    "os.path.exists os.path.isfile os.path.isdir os.path.getsize open read_text write_text read_bytes write_bytes": "uses files",
}
REPLACEABLE = ("sys.stdout", "sys.stderr", "sys.stdin", "builtins.input", "builtins.print")


def dotted(node):
    """An attribute with all that it is an attribute of, or a name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def uses_of(tree):
    """What the tests use, by its whole name; what could be of any object by its own."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)):
            yield dotted(node)
        if isinstance(node, ast.Attribute) and node.attr.startswith(("read_", "write_", "assertWarns", "assertLogs", "assertNoLogs")):
            yield node.attr
    for module, name in imports_of(tree):
        yield f"{module}.{name}" if name else module


def imports_of(tree):
    """The modules that the tests import, and what they take from each: no name where it is the module itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((it.name, None) for it in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, it.name) for it in node.names)


def optional_imports(tree):
    """The modules that the tests can do without."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(re.search("Import|NotFound|Exception|type=None", ast.dump(it)) for it in node.handlers):
            yield from (first_part(name) for statement in node.body for name, _ in imports_of(statement))


def first_part(name):
    return name.partition(".")[0]


def is_installed(name):
    try:
        return name == "pytest" or importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


class Reading:
    """Which names are the solution's."""

    def __init__(self, tree, named, present):
        self.tree, self.named = tree, named
        self.imported = {first_part(name) for name, _ in imports_of(tree)}
        known = {*LIBRARIES, *PYTHONS}
        self.modules = {"solution", *((self.imported & named) - known)}
        unknown = {it for it in self.imported - known if not is_installed(it)}
        if not self.imported & self.modules:
            self.modules |= unknown
        # Modules of the solution that hide one of Python's own: the tests take something from them that Python's lacks.
        self.hiding = {it for it in self.imported & named & PYTHONS if not self.is_of_python(it)}
        self.missing = {it for it in self.imported if not is_installed(it)} - self.modules - set(optional_imports(tree))
        self.taken = [(module, name) for module, name in imports_of(tree) if first_part(module) in {*self.modules, *self.hiding}]
        others = [it for it in present if it not in known]
        self.main = "solution" if "solution" in present or len(others) != 1 else others[0]
        self.own = set(bound_names(tree)) - self.imported
        self.bound = {*bound_names(tree), *dir(builtins)}
        self.free = sorted(name for name in used_names(tree) - self.bound if not name.startswith("__"))
        # Whether names that nobody binds are the solution's.
        self.is_open = not self.taken or any(name == "*" for _, name in self.taken)
        # What the solution gives is known here by these names.
        self.given = {name for it in tree.body if self.is_import(it) for name in bound_names(it)}
        self.given |= {name for it in ast.walk(tree) if self.is_import(it) for name in bound_names(it)} | set(self.free)
        self.functions = {it.name for it in ast.walk(tree) if isinstance(it, (ast.FunctionDef, ast.AsyncFunctionDef))}

    def is_of_python(self, module):
        real = importlib.import_module(module)
        return all(hasattr(real, it) for it in names_wanted(self.tree).get(module, ()))

    def may_give(self, name):
        """Whether the solution may give a name by a star or because nobody binds it."""
        return name.isidentifier() and name not in self.bound and not name.startswith("__") and not self.is_library(name)

    def is_library(self, name):
        """Whether a name stands for a module: a library's or a short one for it, of which only attributes are used."""
        uses = sum(isinstance(it, ast.Name) and it.id == name for it in ast.walk(self.tree))
        owners = sum(isinstance(it, ast.Attribute) and getattr(it.value, "id", "") == name for it in ast.walk(self.tree))
        return (name in {*LIBRARIES, *PYTHONS} or len(name) <= MAX_SHORT) and 0 < uses == owners

    def is_import(self, node):
        """Whether a statement imports something of the solution, and nothing else."""
        found = list(imports_of(node)) if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        return bool(found) and all(it in self.taken for it in found)

    def is_given(self, node):
        """Whether a name is the solution's, or an attribute of one of its modules."""
        if isinstance(node, ast.Attribute):
            return dotted(node.value) in self.modules
        return isinstance(node, ast.Name) and node.id in self.given


def bound_names(tree):
    """Every name that the tests make themselves, anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias) and node.name != "*":
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, ast.ImportFrom) and [it.name for it in node.names] == ["*"] and is_python(node.module):
            yield from dir(importlib.import_module(node.module))
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest


def is_python(module):
    return module is not None and first_part(module) in PYTHONS and is_installed(module)


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Assert, ast.Return, ast.Delete)


def used_names(tree):
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def names_wanted(tree):
    """What the tests take out of each module: `from module import name` and `module.name`."""
    wanted = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted.setdefault(node.module, set()).update(it.name for it in node.names if it.name != "*")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            wanted.setdefault(node.value.id, set()).add(node.attr)
    return wanted


# What can be run before the solution is asked anything.

# Calls that run what the tests define, or use names that are not written.
RUNNING = {"main", "run", "exec", "eval", "globals", "locals", "vars"}


def divide(reading):
    """The script in two: what comes before the solution is needed, for which imports of it wait, and the rest."""
    touched, first, waiting = touched_names(reading), [], []
    for idx, statement in enumerate(reading.tree.body):
        if reading.is_import(statement):
            waiting.append(statement)
        elif needs_solution(statement, reading, touched):
            return first, [*waiting, *reading.tree.body[idx:]]
        else:
            first.append(statement)
    return first, waiting


def touched_names(reading):
    """The solution's names, and all that are made with them."""
    return spread(reading, reading.tree.body)[0]


def spread(reading, parts):
    """The solution's names with all that parts of the tests make with them, and those parts."""
    touched, n_before, found = {*reading.given, *reading.modules}, -1, []
    while len(touched) > n_before:
        n_before = len(touched)
        found = [it for it in parts if touched & used_names(it)]
        for it in found:
            touched |= {it.name} if isinstance(it, DEFINITIONS) else set(bound_names(it))
    return touched, found


def needs_solution(statement, reading, touched):
    """Whether a statement uses something of the solution, or takes its place; what is only defined uses nothing yet."""
    if isinstance(statement, DEFINITIONS):
        inside = statement.body if isinstance(statement, ast.ClassDef) else []
        parts = [*statement.decorator_list, *(statement.bases if isinstance(statement, ast.ClassDef) else [statement.args])]
        is_used = any(touched & used_names(it) for it in parts) or any(needs_solution(it, reading, touched) for it in inside)
        return is_used or statement.name in reading.given
    is_import = any(reading.is_import(it) for it in ast.walk(statement))
    runs = RUNNING & {name_of(it) for it in ast.walk(statement) if isinstance(it, ast.Call)}
    return is_import or bool(runs or touched & {*used_names(statement), *bound_names(statement)})


def touching_lines(reading):
    """The lines that may go wrong by the solution: they use its names, or names that are made with them."""
    parts = [it for it in ast.walk(reading.tree) if isinstance(it, (ast.withitem, ast.comprehension, ast.NamedExpr, *SIMPLE))]
    parts += [ast.Tuple([it.iter, it.target]) for it in ast.walk(reading.tree) if isinstance(it, (ast.For, ast.AsyncFor))]
    simple = [it for it in spread(reading, parts)[1] if isinstance(it, SIMPLE)]
    return {line for it in simple for line in range(it.lineno, it.end_lineno + 1)}


# Whether the tests can be judged.


def why_unusable(reading):
    """Why no solution can be judged by the tests; none is the rule."""
    return next(filter(None, (rule(reading) for rule in RULES)), None)


def a_missing_package(reading):
    missing = sorted(reading.missing)
    return f"the tests need {missing[0]}, which is not installed" if missing else None


def a_name_of_nobody(reading):
    names = [it for it in reading.free if not (reading.is_open and reading.may_give(it))]
    return f"the tests use `{names[0]}` without importing it" if names and "exec" not in used_names(reading.tree) else None


def a_foreign_word(reading):
    foreign = [(word, reason) for words, reason in FOREIGN.items() for word in words.split() if word not in reading.own]
    for use in uses_of(reading.tree):
        for word, reason in foreign:
            if f"{use}.".startswith(f"{word}."):
                return f"the tests use `{word}`, which {reason}: that does not reach a solution in another sandbox"
    return None


def a_replaced_part(reading):
    for node in ast.walk(reading.tree):
        owner = name_of(getattr(node.func, "value", None)) if isinstance(node, ast.Call) else ""
        is_patch = isinstance(node, ast.Call) and "patch" in (name_of(node), owner)
        is_set = owner == "monkeypatch" and name_of(node) == "setattr"
        if (is_patch or is_set) and not is_replaceable(node.args, owner, reading):
            return "the tests replace parts of the solution or of Python, which is not supported"
    return None


def is_replaceable(args, owner, reading):
    """Whether something can be replaced: what is passed on to the solution, or an attribute of the solution's."""
    words = [it.value if isinstance(it, ast.Constant) else dotted(it) for it in args[:2]]
    is_given = owner == "monkeypatch" and bool(args) and (reading.is_given(args[0]) or words[0] in reading.modules)
    return is_given or bool({str(words[0]), ".".join(map(str, words))} & set(REPLACEABLE)) if words else False


def an_async_callback(reading):
    """A function that only the solution's own loop could await."""
    names = {it.name for it in ast.walk(reading.tree) if isinstance(it, ast.AsyncFunctionDef)}
    called = {id(it.func) for it in ast.walk(reading.tree) if isinstance(it, ast.Call)}
    passed = [it.id for it in ast.walk(reading.tree) if isinstance(it, ast.Name) and it.id in names and id(it) not in called]
    return f"the tests pass the asynchronous function {passed[0]}, which cannot be awaited from another process" if passed else None


def a_subclass(reading):
    names = {name for _, name in reading.taken if name}
    for node in ast.walk(reading.tree):
        for base in node.bases if isinstance(node, ast.ClassDef) else []:
            is_taken = name_of(base) in names or (isinstance(base, ast.Attribute) and name_of(base.value) in reading.modules)
            if is_taken and not name_of(base).endswith(("Error", "Exception", "Warning")):
                return f"the tests subclass {name_of(base)}, which lives with the solution"
    return None


def an_identity(reading):
    for node in ast.walk(reading.tree):
        operands = []
        if isinstance(node, ast.Compare) and any(isinstance(it, (ast.Is, ast.IsNot)) for it in node.ops):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and name_of(node) in ("assertIs", "assertIsNot"):
            operands = node.args[:2]
        if operands and not any(has_identity(it, reading) for it in operands):
            return f"the tests compare identities (`{ast.unparse(node)}`), and what comes from another process has none"
    return None


def has_identity(node, reading):
    """Whether something is the same object wherever it comes from: a constant, a type, a member of an enumeration."""
    if isinstance(node, ast.Attribute):
        return node.attr.isupper() or node.attr == "__class__" or name_of(node.value) in reading.modules or node.attr == "type"
    if isinstance(node, ast.Call):
        return name_of(node) == "type"
    if isinstance(node, ast.Name):
        return node.id in dir(builtins) or node.id in {name for _, name in reading.taken}
    return isinstance(node, ast.Constant)


def no_assertion(reading):
    taken = {name for _, name in reading.taken}
    for node in ast.walk(reading.tree):
        name = name_of(node) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Assert) or name in ("raises", "warns", "fail") or (name.startswith("assert") and name not in taken):
            return None
        if isinstance(node, ast.If) and gives_up(node.body[-1], True):
            return None
    return "the tests make no assertion"


def a_missing_part(reading):
    """Attributes of pytest and of its fixtures that there are not here."""
    short = {it.asname: it.name for node in ast.walk(reading.tree) if isinstance(node, ast.Import) for it in node.names}
    attributes = [(name_of(it.value), it.attr) for it in ast.walk(reading.tree) if isinstance(it, ast.Attribute)]
    used = [(short.get(owner, owner), name) for owner, name in attributes]
    made = {it.id for it in ast.walk(reading.tree) if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)}
    for owner, name in [*used, *imports_of(reading.tree)]:
        if owner in PARTS and owner not in made and name not in (*PARTS[owner], None):
            return f"the tests use {owner}.{name}, which is not supported"
    marks = [it for it in ast.walk(reading.tree) if isinstance(it, ast.Call) and name_of(it) in ("xfail", "parametrize")]
    options = {it.arg for mark in marks for it in mark.keywords} & {"indirect", "strict"}
    return f"the tests use the option {min(options)} of pytest, which is not supported" if options else None


def a_missing_fixture(reading):
    known = {"request", "capsys", "monkeypatch", *names_of_fixtures(reading.tree), *names_of_parameters(reading.tree)}
    called = used_names(reading.tree)
    for kind in [reading.tree, *(it for it in reading.tree.body if isinstance(it, ast.ClassDef) and it.name.startswith("Test"))]:
        for function in kind.body:
            is_test = isinstance(function, DEFINITIONS[:2]) and function.name.startswith("test") and function.name not in called
            missing = [it for it in fixtures_needed(function, kind) if it not in known] if is_test else []
            if missing:
                return f"the tests need the fixture `{missing[0]}`, which there is not"
    return None


def fixtures_needed(function, kind):
    """The arguments that pytest makes: all but those with a value, those that `patch` gives, and the object itself."""
    arguments = function.args.args[: len(function.args.args) - len(function.args.defaults)]
    decorators = [it for it in function.decorator_list if isinstance(it, ast.Call)]
    n_given = sum(name_of(it) == "patch" and len(it.args) == 1 and "new" not in [k.arg for k in it.keywords] for it in decorators)
    is_method = isinstance(kind, ast.ClassDef) and "staticmethod" not in map(name_of, function.decorator_list)
    return [it.arg for it in arguments[n_given + is_method:]]


def names_of_fixtures(tree):
    for node in ast.walk(tree):
        made = [it for it in getattr(node, "decorator_list", []) if name_of(it) == "fixture"]
        yield from (node.name for _ in made)
        options = [option for it in made for option in getattr(it, "keywords", [])]
        yield from (it.value.value for it in options if it.arg == "name" and isinstance(it.value, ast.Constant))


def names_of_parameters(tree):
    """The names in `parametrize`: "a, b" or ["a", "b"]."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node) == "parametrize" and node.args:
            texts = [it.value for it in ast.walk(node.args[0]) if isinstance(it, ast.Constant)]
            yield from (name.strip() for text in texts for name in str(text).split(","))


RULES = (
    *(a_missing_package, a_foreign_word, a_name_of_nobody, a_replaced_part, a_missing_part, a_missing_fixture),
    *(an_async_callback, a_subclass, an_identity, no_assertion),
)


# Whether the tests look at plain data alone.

WORDS = "abs all any bool dict divmod enumerate filter float frozenset int len list map max min pow print range repr reversed "
WORDS = set((WORDS + "round set sorted str sum tuple zip math pytest unittest solution check candidate").split())


def is_plain(tree, reading):
    """Whether the tests do nothing but call functions and compare: nothing that shows a copy, or where it was made."""
    attributes = {it.attr for it in ast.walk(tree) if isinstance(it, ast.Attribute)}
    is_known = all(it in {*WORDS, *reading.own, *reading.given} or it.endswith("Error") for it in used_names(tree))
    is_same = any(isinstance(it, (ast.Is, ast.IsNot)) for it in ast.walk(tree))
    texts = {it.value.strip().lower() for it in ast.walk(tree) if isinstance(it, ast.Constant) and isinstance(it.value, str)}
    is_nan = "nan" in {*attributes, *texts, *used_names(tree)}
    return is_known and not is_same and not is_nan and not any(it.startswith("_") for it in attributes)


# Where the tests expect an object.


def telling_names(tree):
    """Attributes by which the tests show that they expect an object: no plain data has them, or they are called for their effect."""
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    calls = [it.value.func for it in ast.walk(tree) if isinstance(it, ast.Expr) and isinstance(it.value, ast.Call)]
    effects = {it.attr for it in calls if isinstance(it, ast.Attribute)} - {"sort", "reverse"}
    return (names - PLAIN_NAMES | effects) - set(names_in_doubt(tree))


def names_in_doubt(tree):
    """Attributes that the tests use only if they are there."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            calls = [it for it in ast.walk(node.test) if isinstance(it, ast.Call) and name_of(it) == "hasattr"]
            yield from (it.value for call in calls for it in call.args if isinstance(it, ast.Constant))
        if isinstance(node, ast.Try) and any("AttributeError" in ast.dump(it) for it in node.handlers):
            inside = [it for statement in node.body for it in ast.walk(statement)]
            yield from (it.attr for it in inside if isinstance(it, ast.Attribute))
