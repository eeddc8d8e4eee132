"""Counting assertions, and what the text of the tests tells before they run."""

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
    if len(listed) < MAX_LISTED:
        listed.append({"line": line, "text": text[:MAX_DETAIL], "passed": holds, "detail": "" if holds else detail})
    return holds


def check_equal(line, text, left, right):
    holds = bool(left == right)
    return check(line, text, holds, "" if holds else f"{short(left)} != {short(right)}")


def check_raised(line, text):
    interrupted.append((line, text, sys.exc_info()[1]))


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


# The text of the tests.


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


def called(name, *values):
    return ast.Call(ast.Name(name, ast.Load()), list(values), [])


class Counted(ast.NodeTransformer):
    """Has every assertion counted. Those of the script itself do not end it, so that all are seen."""

    def __init__(self, top):
        self.top, self.inside = top, []

    def visit_Assert(self, node):
        text = ast.unparse(node.test)
        name, values = "__check__", [node.test]
        if isinstance(node.test, ast.Compare) and [type(op) for op in node.test.ops] == [ast.Eq]:
            name, values = "__check_equal__", [node.test.left, node.test.comparators[0]]
        place = [ast.Constant(node.lineno), ast.Constant(text)]
        self.generic_visit(node)
        values = [node.test] if name == "__check__" else [node.test.left, node.test.comparators[0]]
        count = ast.Assign([ast.Name("__holds__", ast.Store())], called(name, *place, *values))
        caught = ast.ExceptHandler(None, None, [ast.Expr(called("__check_raised__", *place)), ast.Raise()])
        tried = ast.copy_location(ast.Try([count], [caught], [], []), node)
        if node in self.top:
            return tried
        failure = ast.Raise(called("AssertionError", node.msg or ast.Constant(text)))
        failing = ast.If(ast.UnaryOp(ast.Not(), ast.Name("__holds__", ast.Load())), [failure], [])
        return [tried, ast.copy_location(failing, node)]

    def visit_If(self, node):
        is_counted = gives_up(node.body[-1], not self.inside)
        text = f"not ({ast.unparse(node.test)})" if is_counted else ""
        self.generic_visit(node)
        if is_counted:
            place = [ast.Constant(node.lineno), ast.Constant(text)]
            holds = called("__check__", *place, ast.UnaryOp(ast.Not(), node.test))
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), holds), node)
        return node

    def visit_Compare(self, node):
        """`is` between two objects of the solution must be seen."""
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            call = ast.copy_location(called("__same__", node.left, node.comparators[0]), node)
            return call if isinstance(node.ops[0], ast.Is) else ast.copy_location(ast.UnaryOp(ast.Not(), call), node)
        return node

    def visit_ClassDef(self, node):
        return self.visit_inside(node)

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


def makes_assertions(tree):
    """Whether there is anything in the tests that could fail."""
    for node in ast.walk(tree):
        name = name_of(node) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Assert) or name in ("raises", "warns", "fail", "testmod") or name.startswith("assert"):
            return True
        if isinstance(node, ast.If) and gives_up(node.body[-1], True):
            return True
    return False


def impossible_part(tree):
    """What the tests do that has no effect on a solution in another process; none is the rule."""
    for node in ast.walk(tree):
        imported = [it.name for it in getattr(node, "names", []) if isinstance(it, ast.alias)]
        if "subprocess" in imported or getattr(node, "module", None) == "subprocess":
            return "run a program"
        if isinstance(node, ast.Call) and "patch" in (name_of(node), name_of(getattr(node.func, "value", None))):
            target = getattr(node.args[0], "value", None) if node.args else None
            if target not in ("sys.stdout", "sys.stderr"):
                return "replace parts of the solution or of Python"
    return None


def telling_names(tree):
    """Attributes that only an object has which the tests expect to be one."""
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return names - PLAIN_NAMES - set(names_in_doubt(tree))


def names_in_doubt(tree):
    """Attributes that the tests use only if they are there."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            calls = [it for it in ast.walk(node.test) if isinstance(it, ast.Call) and name_of(it) == "hasattr"]
            yield from (it.value for call in calls for it in call.args if isinstance(it, ast.Constant))
        if isinstance(node, ast.Try) and any("AttributeError" in ast.dump(it) for it in node.handlers):
            inside = [it for statement in node.body for it in ast.walk(statement)]
            yield from (it.attr for it in inside if isinstance(it, ast.Attribute))


def bound_names(tree):
    """Every name that the tests make themselves, anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name


def free_names(tree):
    """Names that the tests use and nobody gives them."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    known = {*bound_names(tree), *dir(builtins), "__file__"}
    return [] if "*" in known else sorted(used - known)


def names_wanted(tree):
    """What the tests take out of each module: `from module import name` and `module.name`."""
    wanted = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted.setdefault(node.module, set()).update(it.name for it in node.names if it.name != "*")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            wanted.setdefault(node.value.id, set()).add(node.attr)
    return wanted
