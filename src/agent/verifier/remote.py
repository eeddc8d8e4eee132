"""Stand-ins for what stays with the solution, and what of it is believed.

Believed is plain data, once it is here: it is compared by this interpreter, never by the solution.
A function of the tests' choice may be asked for it. An object of the solution answers for itself
(operators, `in`, truth, methods), so its answers count only where the tests expect an object and no
plain data: where they ask for an attribute that no plain data has, call it, set it, enter it, use its
class as a class, or make it by a capitalised name without arguments. An answer of any other object is
remembered as a doubt, and a doubt that is not settled when the tests end fails the solution; or leaves
it unjudged if the object was made by a capitalised name, which may well be meant as a class. Length,
items, text and number of such an object are data, and believed. Identity and hashes of the solution's
objects are never believed, and their equality only as `equality.py` says.
"""

import builtins

incoming, outgoing = take_over()

MAX_ANSWER = 64 << 20


class SolutionError(BaseException):
    """The solution did something that no test can judge."""


class TestsUnusable(BaseException):
    """The tests need something that they cannot have here."""


class Ending:
    """What is known about the end whatever the tests catch: the first reason stays."""

    failure = unusable = problem = None


def give_up(reason):
    if Ending.unusable is None:
        Ending.failure = Ending.failure or reason
    return SolutionError(reason)


def cannot_judge(reason):
    if Ending.failure is None:
        Ending.unusable = Ending.unusable or reason
    return TestsUnusable(reason)


# What is believed.

PLAIN_KINDS = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range),
    *(*SEQUENCES.values(), *MAPPINGS.values(), decimal.Decimal, fractions.Fraction),
    *(types.FunctionType, types.GeneratorType),
)
ARRAY_NAMES = "T all any argmax argmin astype dtype flatten item max mean min ndim ravel reshape shape size std sum tolist"
PLAIN_NAMES = {name for kind in PLAIN_KINDS for name in dir(kind)}.union(ARRAY_NAMES.split())
# Who expects plain data calls these; as data they are attributes like any other.
METHOD_NAMES = {name for kind in PLAIN_KINDS for name in dir(kind) if callable(getattr(kind, name, None))}
# The attributes that the tests ask for and no plain data has.
telling = set()
# Where objects came from that tests expect to be objects, and where those came from that have answered anything.
believed, doubts = set(), {}
# Names of classes that the tests called.
makers = set()


def believe(origin):
    """Operators on plain data give plain data, so who expects an object of one expects its operand to be one too."""
    while origin:
        believed.add(origin)
        origin = origin.rpartition(" __")[0]


DATA = ("__len__", "__getitem__", "__str__", "__repr__", "__float__", "__int__", "__iter__")


def is_made_by_class(origin):
    """Whether the tests themselves made it by a name that classes have, or got it by an operator from such."""
    name = origin.partition(" __")[0]
    return name in makers and name[:1].isupper()


def doubt(remote, value, question):
    """An answer that only an object gives which the tests expect to be one."""
    is_data = is_made_by_class(remote.remote_origin) and question in DATA
    if value is not None and not isinstance(value, Remote) and not is_data:
        doubts.setdefault(remote.remote_origin, question)
    return value


def settle_doubts():
    unsettled = [(is_made_by_class(it), it, question) for it, question in doubts.items() if it not in believed]
    for is_unjudged, origin, question in sorted(unsettled):
        where = f"({origin}, asked for {question})"
        if is_unjudged:
            cannot_judge(f"the tests do not show whether they expect an object of the solution {where}")
        else:
            give_up(f"an object of the solution stands where the tests expect plain data {where}")


def is_expected(remote, other=None):
    """Whether the tests themselves use such objects, or make them of a class to set them beside each other."""
    is_made = is_made_by_class(remote.remote_origin) and (other is None or isinstance(other, Remote))
    return remote.remote_origin in believed or is_made


class Remote:
    """Something of the solution; it can be used, but it is never compared."""

    def __init__(self, number, origin):
        object.__setattr__(self, "remote_number", number)
        object.__setattr__(self, "remote_origin", origin)

    def remote_refuse(self, other=None):
        if is_expected(self, other) or (isinstance(other, Remote) and is_expected(other, self)):
            raise cannot_judge("the tests compare objects of the solution, and only plain data is compared")
        raise give_up(f"an object of the solution stands where the tests compare plain data ({self.remote_origin})")

    __hash__ = remote_refuse

    def __eq__(self, other):
        if other is None:
            return False
        equal = are_equal(self, other) if isinstance(other, Remote) else None
        return self.remote_refuse(other) if equal is None else equal

    def __ne__(self, other):
        return not self == other


def same(left, right):
    """`left is right`, which tells nothing about stand-ins."""
    if isinstance(left, Remote) and isinstance(right, Remote):
        left.remote_refuse(right)
    return left is right


class RemoteFunction(Remote):
    # The object whose method it is, if the method has a name that plain data has too.
    remote_owner = None

    def __call__(self, *args, **kwargs):
        # A copy is what it is a copy of.
        is_copy = self.remote_owner is not None and self.remote_origin == ".copy"
        origin = self.remote_owner.remote_origin if is_copy else f"{self.remote_origin}()"
        value = call(self.remote_number, args, kwargs, origin)
        return doubt(self.remote_owner, value, self.remote_origin) if self.remote_owner is not None else value


class RemoteObject(Remote):
    """An object or a class of the solution."""

    # Its attributes as they were when it came, when that was, and what the tests made it of.
    remote_state = remote_born = remote_made = None

    def remote_special(self, name, *args):
        question = {"op": name, "target": self.remote_number, "args": pack(list(args))}
        origin = self.remote_origin if self.remote_origin.endswith(f" {name}") else f"{self.remote_origin} {name}"
        return doubt(self, ask(question, origin), name)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in telling:
            believe(self.remote_origin)
        value = ask({"op": "get", "target": self.remote_number, "name": name}, f".{name}")
        if name not in telling and isinstance(value, RemoteFunction):
            object.__setattr__(value, "remote_owner", self)
        return value if name in METHOD_NAMES else doubt(self, value, name)

    def __setattr__(self, name, value):
        believe(self.remote_origin)
        ask({"op": "set", "target": self.remote_number, "name": name, "args": pack([value])}, "")

    def __call__(self, *args, **kwargs):
        is_class = self.remote_number in classes
        if not is_class or (self.remote_origin[:1].isupper() and not args and not kwargs):
            believe(self.remote_origin)
        if not is_class:
            return doubt(self, call(self.remote_number, args, kwargs, f"{self.remote_origin}()"), "a call")
        makers.add(self.remote_origin)
        made = copy_of_plain([*args, *kwargs.values()])
        value = call(self.remote_number, args, kwargs, self.remote_origin)
        if isinstance(value, RemoteObject):
            object.__setattr__(value, "remote_made", made)
        return value

    def __enter__(self):
        believe(self.remote_origin)
        return self.remote_special("__enter__")

    def __exit__(self, kind, error, trace):
        # Whether the exception is swallowed is the object's own affair, but it must say so in plain words.
        names = None if kind is None else {"bt": kind.__name__} if getattr(builtins, kind.__name__, None) is kind else None
        question = {"op": "__exit__", "target": self.remote_number, "args": [names, None, None]}
        is_taken = ask(question, "__exit__") is True
        if is_taken and getattr(error, "is_of_solution", False):
            raise cannot_judge("the solution swallows an exception of its own, and what the tests do after it is not seen")
        return is_taken

    def __iter__(self):
        iterator = ask({"op": "__iter__", "target": self.remote_number}, f"{self.remote_origin}[]")
        if self.remote_number in iterated:
            doubt(self, "its items again", "__iter__")
        iterated.add(self.remote_number)
        Last.iterated = self
        if not isinstance(iterator, RemoteIterator):
            raise give_up("the solution has an iterator that is none")
        return iterator

    def __len__(self):
        if Last.iterated is self:
            raise TypeError("a list that is being made of it only wants a hint")
        return plain(self.remote_special("__len__"), int)

    def __bool__(self):
        return plain(self.remote_special("__bool__"), bool)

    def __contains__(self, item):
        return plain(self.remote_special("__contains__", item), bool)

    def __str__(self):
        return plain(self.remote_special("__str__"), str)

    def __repr__(self):
        return plain(self.remote_special("__repr__"), str)

    def __float__(self):
        return plain(self.remote_special("__float__"), float)

    def __int__(self):
        return plain(self.remote_special("__int__"), int)

    def __copy__(self):
        return ask({"op": "__copy__", "target": self.remote_number}, self.remote_origin)

    def __deepcopy__(self, _):
        return ask({"op": "__deepcopy__", "target": self.remote_number}, self.remote_origin)

    def __instancecheck__(self, other):
        believe(self.remote_origin)
        return isinstance(other, RemoteObject) and classes.get(self.remote_number) in kinds.get(other.remote_number, ())


class RemoteIterator(RemoteObject):
    """An iterator or generator; one that has ended stays so, as those of plain data do."""

    remote_ended = False

    def __iter__(self):
        return self

    def __next__(self):
        if self.remote_ended and self.remote_origin not in believed:
            raise StopIteration
        try:
            return ask({"op": "next", "target": self.remote_number}, self.remote_origin)
        except StopIteration:
            object.__setattr__(self, "remote_ended", True)
            raise


def forward(name):
    def method(self, *args):
        return self.remote_special(name, *args)

    return method


ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor".split()
for operation in (
    *("getitem setitem delitem lt le gt ge neg pos abs invert round".split()),
    *(prefix + name for name in ARITHMETIC for prefix in ("", "r", "i") if name != "divmod" or not prefix),
):
    setattr(RemoteObject, f"__{operation}__", forward(f"__{operation}__"))


async def awaited(number, origin):
    return ask({"op": "await", "target": number}, origin)


def plain(value, kind):
    if type(value) is not kind:
        raise give_up(f"the solution answered {type(value).__name__} where {kind.__name__} belongs")
    return value


# What the solution's objects are said to be.
classes, kinds, iterated = {}, {}, set()
callbacks, exceptions = [], {}


class Last:
    """What was asked last, and where what is being read came from."""

    iterated, origin, n_asked = None, "", 0


def numbered(number):
    if type(number) is not int:
        raise NotPlain("the solution sent something unreadable")
    return number


def is_data_type(kind):
    return kind in PLAIN_KINDS or (isinstance(kind, type) and issubclass(kind, BaseException))


def resolve(tag, body):
    if tag == "f":
        return RemoteFunction(numbered(body), Last.origin)
    if tag == "co":
        return awaited(numbered(body), Last.origin)
    if tag == "cb" and 0 <= numbered(body):
        return callbacks[body]
    if tag == "bt" and is_data_type(getattr(builtins, body, None)):
        return getattr(builtins, body)
    if tag == "k":
        return resolve_class(*body)
    if tag in ("o", "it"):
        kinds[numbered(body[0])] = body[1]
        value = (RemoteObject if tag == "o" else RemoteIterator)(body[0], Last.origin)
        object.__setattr__(value, "remote_state", read_state(body[2]))
        object.__setattr__(value, "remote_born", Last.n_asked)
        return value
    raise NotPlain("the solution sent something unreadable")


def resolve_class(number, name, bases):
    if bases is not None:
        return exception_named(bases)
    classes[numbered(number)] = name
    return RemoteObject(number, Last.origin)


def exception_named(names):
    """The builtin exception of that name, or one made here with its bases."""
    builtin = getattr(builtins, names[0], None)
    if isinstance(builtin, type) and issubclass(builtin, BaseException):
        return builtin
    if names[0] not in exceptions:
        exceptions[names[0]] = type(names[0], (exception_named(names[1:]),), {"__str__": lambda it: it.solution_text})
        exceptions[names[0]].solution_text = ""
    return exceptions[names[0]]


def refer(value):
    if isinstance(value, Remote):
        return {"ref": value.remote_number}
    if isinstance(value, type) and getattr(builtins, value.__name__, None) is value:
        return {"bt": value.__name__}
    if callable(value):
        callbacks.append(value)
        return {"cb": len(callbacks) - 1}
    raise cannot_judge(f"the tests pass a {type(value).__name__}, which cannot be sent to the solution")


def pack(value):
    return encode(value, refer)


# Asking the solution.


def exchange(question):
    """The solution's whole answer, once its calls of the tests' own functions are served."""
    Last.iterated = None
    Last.n_asked += 1
    send(outgoing, question)
    while True:
        line = incoming.readline(MAX_ANSWER)
        if not line.endswith(b"\n"):
            raise NotPlain("the solution ended its process" if len(line) < MAX_ANSWER else "the solution answers too much")
        answer = json.loads(line)
        pass_on(answer.get("printed"))
        if "callback" not in answer:
            return answer
        run_callback(answer)


def pass_on(printed):
    """What the solution printed, for tests that look at standard output."""
    if type(printed) is str and sys.stdout is not sys.__stdout__:
        sys.stdout.write(printed)


def run_callback(message):
    Last.origin = "a function of the tests"
    args = decode(message["args"], resolve)
    kwargs = decode(message["kwargs"], resolve)
    try:
        reply = {"returned": pack(callbacks[numbered(message["callback"])](*args, **kwargs))}
    except Exception as error:
        name = type(error).__name__
        is_known = getattr(builtins, name, None) is type(error) and all(type(it) in (str, int) for it in error.args)
        reply = {"raised": name if is_known else "RuntimeError", "details": list(error.args) if is_known else [str(error)]}
    send(outgoing, reply)


def ask(question, origin, after=lambda answer: None):
    """What the solution answers, as a value or an exception."""
    if Ending.failure is not None:
        raise SolutionError(Ending.failure)
    try:
        answer = exchange(question)
        Last.origin = origin
        problem = raised(answer, question["op"]) if "error" in answer else None
        value = decode(answer["value"], resolve) if problem is None else None
        if problem is None:
            after(answer)
    except NotPlain as error:
        raise give_up(str(error)) from None
    except Exception as error:
        raise give_up(f"the solution's process answers nonsense ({type(error).__name__})") from None
    if problem is not None:
        raise problem
    return value


def raised(answer, operation):
    """What the solution raised, as a builtin exception or one made here."""
    names = [name for name in answer["error"] if type(name) is str]
    if names[0] == "StopIteration" and operation == "next":
        return StopIteration()
    kind = exception_named(names)
    # Raised from anything else, these would quietly end a loop of the tests.
    if issubclass(kind, (StopIteration, StopAsyncIteration, GeneratorExit)):
        return give_up(f"the solution raised {names[0]}")
    try:
        error = kind(*decode(answer["details"], resolve))
    except Exception:
        error = kind(str(answer["text"]))
    return with_attributes(error, answer)


def with_attributes(error, answer):
    for name, value in decode(answer["attributes"], resolve).items():
        if not name.startswith("_"):
            setattr(error, name, value)
    error.solution_text = str(answer["text"])
    error.is_of_solution = True
    return error


def call(number, args, kwargs, origin):
    args = list(args)

    def after(answer):
        # Functions may work on their arguments in place; tests look at them afterwards.
        for before, now in zip(args, decode(answer["args"], resolve)):
            refresh(before, now)
        now = decode(answer["kwargs"], resolve)
        for name, before in kwargs.items():
            refresh(before, now[name])

    return ask({"op": "call", "target": number, "args": pack(args), "kwargs": pack(kwargs)}, origin, after)


def refresh(old, new):
    """Makes a container that was changed by the solution look as it looks there."""
    if type(old) is not type(new) and not (isinstance(old, dict) and isinstance(new, dict)):
        return
    if isinstance(old, list):
        old[:] = [kept(before, now) for before, now in zip(old, new)] + new[len(old):]
    elif isinstance(old, dict):
        entries = {key: kept(old[key], now) if key in old else now for key, now in new.items()}
        old.clear()
        for key, now in entries.items():
            old[key] = now
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
    if isinstance(before, Remote) and isinstance(now, Remote) and before.remote_number == now.remote_number:
        return before
    return now
