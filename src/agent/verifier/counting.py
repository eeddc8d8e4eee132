"""Counting assertions: the text of the tests is changed so that every one of them is seen."""

import ast

MAX_LISTED = 500
MAX_DETAIL = 300

listed, entered = [], set()
counts = {True: 0, False: 0}
# Assertions that could not be evaluated, until it is known whether the tests go on as if nothing had happened.
interrupted = []


def check(line, text, holds, detail=""):
    """Counts an assertion."""
    holds = bool(holds)
    counts[holds] += 1
    Ending.is_refuted = Ending.is_refuted or (Ending.is_plain and not holds)
    if len(listed) < MAX_LISTED:
        listed.append({"line": line, "text": text[:MAX_DETAIL], "passed": holds, "detail": "" if holds else detail})
    return holds


def check_equal(line, text, left, right):
    holds = bool(left == right)
    return check(line, text, holds, "" if holds else f"{short(left)} != {short(right)}")


def check_raised(line, text):
    interrupted.append((line, text, sys.exc_info()[1]))


def check_call(line, text, is_top, function, *args, **kwargs):
    """A call whose name says that it asserts: of a library, a mock or the tests, but never of the solution."""
    if isinstance(function, Remote):
        return function(*args, **kwargs)
    before = sum(counts.values())
    try:
        value = function(*args, **kwargs)
    except AssertionError as error:
        if sum(counts.values()) == before:
            check(line, text, False, last_line(str(error) or text))
        if is_top:
            return None
        raise
    if sum(counts.values()) == before:
        check(line, text, True)
    return value


def forgive(error):
    """The tests expected this exception."""
    interrupted[:] = [it for it in interrupted if it[2] is not error]


def settle(is_ended_by_error):
    """Assertions that raised count as failed where the tests swallowed that; an error that came through tells more."""
    if not is_ended_by_error:
        for line, text, error in interrupted:
            check(line, text, False, short(error))
    interrupted.clear()


def short(value):
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= MAX_DETAIL else text[:MAX_DETAIL] + "..."


def last_line(text):
    return text.strip().splitlines()[-1][:MAX_DETAIL]


# Changing the text.


def name_of(node):
    """The last word of a name, an attribute or a call."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def gives_up(statement, is_top):
    """Whether a statement is how a script says that a test failed without asserting."""
    if isinstance(statement, ast.Raise):
        return name_of(statement.exc) in ("SystemExit", "AssertionError", "Exception" if is_top else "")
    call = statement.value if isinstance(statement, ast.Expr) else None
    leaves = isinstance(call, ast.Call) and name_of(call) in ("exit", "quit", "_exit", "fail")
    return leaves and not all(isinstance(it, ast.Constant) and it.value in (0, None) for it in call.args or [ast.Constant(0)])


def is_assertion(call):
    """Whether a call asserts by its name; those of a case are counted with the case."""
    is_of_case = isinstance(call.func, ast.Attribute) and name_of(call.func.value) in ("self", "cls")
    return name_of(call).startswith("assert") and not is_of_case


def called(name, *values):
    return ast.Call(ast.Name(name, ast.Load()), list(values), [])


def reads_solution(call):
    """The module whose text a call of `exec` runs, if it is one of the solution's."""
    if name_of(call) != "exec" or "open" not in [name_of(it) for it in ast.walk(call)]:
        return None
    texts = [it.value for it in ast.walk(call) if isinstance(it, ast.Constant) and isinstance(it.value, str)]
    found = [it.rpartition("/")[2].removesuffix(".py") for it in texts if it.endswith(".py")]
    return found[0] if len(found) == 1 and found[0].isidentifier() else None


class Executed(ast.NodeTransformer):
    """Running the solution's text is importing what it defines."""

    def visit_Expr(self, node):
        module = reads_solution(node.value) if isinstance(node.value, ast.Call) else None
        return node if module is None else ast.copy_location(ast.ImportFrom(module, [ast.alias("*")], 0), node)


class Counted(ast.NodeTransformer):
    """Has every assertion counted. Those of the script itself do not end it, so that all are seen."""

    def __init__(self, top):
        self.top, self.inside = top, []

    def visit_Assert(self, node):
        text = ast.unparse(node.test)
        is_equality = isinstance(node.test, ast.Compare) and [type(op) for op in node.test.ops] == [ast.Eq]
        place = [ast.Constant(node.lineno), ast.Constant(text)]
        self.generic_visit(node)
        name, values = "__check__", [node.test]
        if is_equality:
            name, values = "__check_equal__", [node.test.left, *node.test.comparators]
        count = ast.Assign([ast.Name("__holds__", ast.Store())], called(name, *place, *values))
        caught = ast.ExceptHandler(None, None, [ast.Expr(called("__check_raised__", *place)), ast.Raise()])
        body, last = [count], []
        if not isinstance(node.test, ast.BoolOp):
            body, last = [ast.Expr(called("__hold__")), count], [ast.Expr(called("__release__"))]
        tried = ast.copy_location(ast.Try(body, [caught], [], last), node)
        if node in self.top:
            return tried
        failure = ast.Raise(called("AssertionError", node.msg or ast.Constant(text)))
        failing = ast.If(ast.UnaryOp(ast.Not(), ast.Name("__holds__", ast.Load())), [failure], [])
        return [tried, ast.copy_location(failing, node)]

    def visit_Expr(self, node):
        call, is_top = node.value, node in self.top
        text = ast.unparse(node)
        self.generic_visit(node)
        if isinstance(call, ast.Call) and name_of(call).startswith("assert") and not is_assertion(call):
            return ast.copy_location(ast.Try([ast.Expr(called("__hold__")), node], [], [], [ast.Expr(called("__release__"))]), node)
        if isinstance(call, ast.Call) and is_assertion(call):
            place = [ast.Constant(call.lineno), ast.Constant(text), ast.Constant(is_top)]
            counted = ast.Call(ast.Name("__check_call__", ast.Load()), [*place, call.func, *call.args], call.keywords)
            return ast.copy_location(ast.Expr(counted), node)
        return node

    def visit_Call(self, node):
        """The type of a stand-in is the class that it stands for."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) == 1 and not node.keywords:
            node.func = ast.copy_location(ast.Name("__type_of__", ast.Load()), node)
        return node

    def visit_Attribute(self, node):
        self.generic_visit(node)
        is_class = node.attr == "__class__" and isinstance(node.ctx, ast.Load)
        return ast.copy_location(called("__type_of__", node.value), node) if is_class else node

    def visit_If(self, node):
        is_counted = gives_up(node.body[-1], not self.inside)
        text = f"not ({ast.unparse(node.test)})" if is_counted else ""
        self.generic_visit(node)
        if is_counted:
            place = [ast.Constant(node.lineno), ast.Constant(text)]
            holds = called("__check__", *place, ast.UnaryOp(ast.Not(), node.test))
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), holds), node)
        return node

    def visit_FunctionDef(self, node):
        mark = ast.Expr(called("__entered__", ast.Constant(".".join([*self.inside, node.name]))))
        self.visit_inside(node)
        if node.name.startswith(("test", "check")):
            node.body.insert(0, ast.copy_location(mark, node.body[0]))
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_inside(self, node):
        self.inside.append(node.name)
        self.generic_visit(node)
        self.inside.pop()
        return node

    visit_ClassDef = visit_inside
