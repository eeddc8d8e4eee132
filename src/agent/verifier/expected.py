"""Objects that the tests expect are made when they are compared, so that the solution does not know them before it has answered.

The text shows them: they are operands of a comparison, arguments of an assertion or of a function of the tests,
kept in a table, or bound to a name that is used in no other way. Whatever else turns out to need such an object
makes it then, so only the order changes; where the tests expect an exception, it does not.
"""

# What an object is kept in on its way to the place where it is used.
KEEPING = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Starred, ast.keyword, ast.IfExp, ast.ListComp, ast.SetComp, ast.DictComp)
COMPARING = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
BLOCKS = (ast.With, ast.AsyncWith, ast.Try)


def later(function, *args, **kwargs):
    return function.remote_later(*args, **kwargs) if type(function) is RemoteClass else function(*args, **kwargs)


def is_name(node):
    return isinstance(node, (ast.Name, ast.Attribute)) and dotted(node)


class Expected:
    """Which calls of the tests make objects that they only compare."""

    def __init__(self, reading):
        self.reading = reading
        self.parents = {child: node for node in ast.walk(reading.tree) for child in ast.iter_child_nodes(node)}
        self.uses = {}
        for node in filter(is_name, self.parents):
            if isinstance(node.ctx, ast.Load):
                self.uses.setdefault(dotted(node), []).append(node)

    def calls(self):
        found = [it for it in self.parents if isinstance(it, ast.Call) and self.reading.is_given(it.func)]
        return {it for it in found if self.is_expected(it)}

    def place_of(self, node):
        """Where something is used in the end, and whether it is kept in a table on its way."""
        is_kept, place = False, self.parents.get(node)
        while isinstance(place, KEEPING) or (isinstance(place, ast.Call) and name_of(place) == "param"):
            is_kept, place = True, self.parents[place]
        return place, is_kept

    def is_expected(self, call):
        place, is_kept = self.place_of(call)
        if isinstance(place, ast.Call) and self.reading.is_given(place.func):
            return self.is_expected(place)
        if self.compares(place):
            return True
        if self.is_guarded(call):
            return False
        if self.is_watched(call.func):
            return False
        if isinstance(place, (ast.Return, ast.Yield)):
            return self.is_only_compared(getattr(self.function_of(place), "name", ""))
        if isinstance(place, (ast.Assign, ast.AnnAssign)):
            targets = place.targets if isinstance(place, ast.Assign) else [place.target]
            names = [part for it in targets for part in getattr(it, "elts", [it])]
            return all(is_name(it) and self.is_only_compared(dotted(it), is_kept) for it in names)
        return is_kept and isinstance(place, (ast.For, ast.AsyncFor, ast.comprehension))

    def is_watched(self, kind):
        """Whether the tests look at when objects of a class are made: by its attributes, or by what is printed."""
        return "capsys" in self.uses or "sys.stdout" in self.uses or any(it.startswith(f"{dotted(kind)}.") for it in self.uses)

    def compares(self, place):
        if isinstance(place, ast.Compare):
            return all(isinstance(it, COMPARING) for it in place.ops)
        if isinstance(place, ast.Call):
            name = name_of(place)
            return name in ("parametrize", "print", "str", "repr") or name.startswith("assert") or name in self.reading.functions
        return isinstance(place, ast.FormattedValue)

    def is_only_compared(self, name, is_table=False):
        """Whether a name is used for nothing else; a table may also be gone through."""
        places = [self.place_of(it)[0] for it in self.uses.get(name, [])]
        through = (ast.For, ast.AsyncFor, ast.comprehension) if is_table else ()
        return bool(places) and all(self.compares(it) or isinstance(it, through) for it in places)

    def above(self, node):
        while node in self.parents:
            node = self.parents[node]
            yield node

    def is_guarded(self, node):
        """Whether the tests may expect an exception there."""
        return any(isinstance(it, BLOCKS) for it in self.above(node))

    def function_of(self, node):
        return next(it for it in self.above(node) if isinstance(it, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))
