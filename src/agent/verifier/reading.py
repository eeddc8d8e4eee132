"""What the text of the tests tells before the solution runs: whose each name is, and whether they can be judged at all.

A name is the solution's only if the tests take it from a module of the solution: by its name, as an attribute
of the module, or by a star, which gives what the solution defines and neither a builtin nor a name that the
tests bind. Tests that take nothing so mean the solution by the names that nobody binds. A module is the
solution's if it is called `solution`, if the task names it, or if the tests take nothing from such a one and
it is no library. A library never comes from the solution, under whatever name it is known.
"""

LIBRARIES = set(
    "numpy np pandas pd scipy sp sympy sym hypothesis torch sklearn tensorflow tf keras jax jnp requests matplotlib plt seaborn sns "
    "networkx nx pydantic freezegun pytest nose mock parameterized attr attrs yaml bs4 flask django fastapi starlette httpx aiohttp "
    "sqlalchemy tqdm PIL cv2 numba cython dateutil pytz arrow regex lxml simplejson ujson orjson toml tomli more_itertools toolz "
    "sortedcontainers gmpy2 mpmath nltk spacy faker responses psutil joblib dask polars pyarrow xarray statsmodels bitarray bs4 "
    "click typer rich jinja2 markdown redis pymongo boto3 cryptography jwt websockets anyio trio uvloop typing_extensions six".split()
)
PYTHONS = {*sys.stdlib_module_names, *sys.builtin_module_names}

# What cannot reach a solution in another process, by what the tests use for it.
FOREIGN = {
    "inspect.getsource inspect.getsourcelines inspect.getsourcefile inspect.getfile": "reads the text of the solution",
    "doctest": "lets the solution judge itself",
    "os.environ os.putenv": "changes the environment",
    "subprocess os.system os.popen runpy multiprocessing concurrent.futures.ProcessPoolExecutor": "runs a program",
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
        if isinstance(node, ast.Attribute) and node.attr in ("read_text", "write_text", "read_bytes", "write_bytes"):
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
        self.hiding = {it for it in self.imported & named & PYTHONS if it in present and not self.is_of_python(it)}
        self.missing = {it for it in self.imported if not is_installed(it)} - self.modules - set(optional_imports(tree))
        self.taken = [(module, name) for module, name in imports_of(tree) if first_part(module) in {*self.modules, *self.hiding}]
        others = [it for it in present if it not in known]
        self.main = "solution" if "solution" in present or len(others) != 1 else others[0]
        self.own = set(bound_names(tree)) - self.imported
        self.bound = {*bound_names(tree), *dir(builtins)}
        self.free = sorted(name for name in used_names(tree) - self.bound if not name.startswith("__"))
        # Whether names that nobody binds are the solution's.
        self.is_star = any(name == "*" for _, name in self.taken)
        self.is_open = not self.taken or self.is_star

    def is_of_python(self, module):
        real = importlib.import_module(module)
        return all(hasattr(real, it) for it in names_wanted(self.tree).get(module, ()))

    def may_give(self, name):
        """Whether the solution may give a name by a star or because nobody binds it."""
        return name.isidentifier() and name not in {*self.bound, *LIBRARIES, *PYTHONS} and not name.startswith("__")


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


def touching_lines(reading):
    """The lines of the tests that may hold something of the solution: by its names, and by names made of those."""
    touched, n_before = {name for _, name in reading.taken if name} | reading.modules | set(reading.free), -1
    statements = [it for it in ast.walk(reading.tree) if isinstance(it, ast.stmt)]
    while len(touched) > n_before:
        n_before, lines = len(touched), set()
        for statement in statements:
            if touched & used_names(statement):
                lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
                touched |= set(bound_names(statement))
    return lines


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
        if isinstance(node, ast.Call) and "patch" in (name_of(node), name_of(getattr(node.func, "value", None))):
            target = getattr(node.args[0], "value", None) if node.args else None
            if target not in REPLACEABLE:
                return "the tests replace parts of the solution or of Python, which is not supported"
    return None


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


RULES = (a_missing_package, a_foreign_word, a_name_of_nobody, a_replaced_part, a_subclass, an_identity, no_assertion)


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
