"""Stand-ins for what stays with the solution, and what of it is believed.

Believed is plain data, once it is here: it is compared by this interpreter, never by the solution.
A function of the tests' choice may be asked for it. An object of the solution answers for itself
(operators, `in`, truth, methods), so its answers count only where the tests expect an object and no
plain data: where they ask it for an attribute that no plain data has, set one, call it, enter it, ask whether
it is of its class, or made it by a capitalised name. An answer of any other object is remembered as a
doubt, and a doubt that is not settled when the tests end fails them; so does data that an object gives
for an operand which may say what is expected. An object equals no plain data, unless it is a subclass of
such: then its content is compared here. When two objects are equal says `equality.py`.
"""

import builtins
import enum
import functools
import inspect
import io
import queue
import random
import threading
import traceback
import unittest.mock

incoming, outgoing = take_over()

MAX_ANSWER = 64 << 20


class SolutionError(BaseException):
    """The solution did something that no test can judge."""


class Ending:
    """What is known about the end whatever the tests catch: the first reason stays."""

    failure = unusable = problem = None
    # Whether only plain data was exchanged until now, and whether such has refuted an assertion or the solution ended itself.
    is_plain = is_refuted = False


def give_up(reason):
    Ending.failure, Ending.is_plain = Ending.failure or reason, False
    return SolutionError(reason)


# What is believed.

PLAIN_KINDS = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range),
    *(collections.deque, *MAPPINGS.values(), decimal.Decimal, fractions.Fraction),
    *(types.FunctionType, types.GeneratorType),
)
ARRAY_NAMES = "T all any argmax argmin astype dtype flatten item max mean min ndim ravel reshape shape size std sum tolist"
PLAIN_NAMES = {name for kind in PLAIN_KINDS for name in dir(kind)}.union(ARRAY_NAMES.split())
# Who expects plain data calls these; as data they are attributes like any other.
METHOD_NAMES = {name for kind in PLAIN_KINDS for name in dir(kind) if callable(getattr(kind, name, None))}
# The attributes by which the tests show that they expect an object.
telling = set()
# Objects that the tests have shown to expect, and what others have answered, by the way they came.
believed, doubts = set(), {}
# The lines of the tests that may go wrong by the solution.
touching = set()
# Operators that say what is expected if it is their operand: what is left may be nothing then.
REVEALING = {f"__{prefix}{name}__" for name in "sub truediv floordiv mod divmod xor and or".split() for prefix in ("", "r", "i")}


def believe(remote):
    believed.add((remote.remote_number, remote.remote_origin))


def doubt(remote, value, question, says_what=False):
    """An answer that only an object gives which the tests expect to be one; by yes or no if the question may say what is expected."""
    is_guess = says_what and type(value) is bool
    if value is not None and not isinstance(value, Remote) and (is_guess or not remote.remote_is_made):
        key = (remote.remote_origin, question, remote.remote_is_made)
        doubts.setdefault(key, []).append((remote.remote_number, value if type(value) is bool else None))
    return value


def settle_doubts():
    """Objects that the tests made may also show that they are such by answering both yes and no."""
    for (origin, question, is_made), answers in doubts.items():
        is_open = is_made and {answer for _, answer in answers} == {True, False}
        if not is_open and any((number, origin) not in believed for number, _ in answers):
            give_up(f"an object of the solution stands where the tests expect plain data ({origin}, asked for {question})")


# Stand-ins.

# What can be asked of functions and classes beside their own attributes.
FACTS = ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__", "__defaults__", "__kwdefaults__", "__version__")


class Remote:
    """Something of the solution."""

    def __init__(self, number, origin):
        self.remote_know(remote_number=number, remote_origin=origin)

    def remote_know(self, **facts):
        """Sets attributes of the stand-in, not of what it stands for."""
        for name, value in facts.items():
            object.__setattr__(self, name, value)
        return self

    def remote_get(self, name):
        owner = getattr(self.remote_class, "remote_origin", "") if isinstance(self, RemoteObject) else ""
        return ask({"op": "get", "target": self.remote_reference(), "name": name}, f"{owner}.{name}")

    def remote_reference(self):
        return {"ref": self.remote_number}

    def __mro_entries__(self, _):
        raise give_up(f"the tests subclass {self.remote_origin}, which must be an exception")


def fact(name):
    return property(lambda self: self.remote_get(name))


class Described(Remote):
    """What has a name, a documentation and a signature."""

    def __getattr__(self, name):
        if name.startswith("__") and name not in FACTS:
            raise AttributeError(name)
        return self.remote_get(name)

    @property
    def __signature__(self):
        *parts, end = ask({"op": "signature", "target": self.remote_reference()}, "")
        empty = inspect.Parameter.empty
        found = [
            inspect.Parameter(name, kind, default=default if has_default else empty, annotation=empty if note is None else note)
            for name, kind, has_default, default, note in parts
        ]
        return inspect.Signature(found, return_annotation=empty if end[4] is None else end[4])

    def __hash__(self):
        return hash(self.remote_number)

    def __eq__(self, other):
        return type(other) is type(self) and other.remote_number == self.remote_number


# What an asynchronous function and the like look like to `inspect`.
FLAGS = {
    "coroutine": inspect.CO_COROUTINE,
    "generator": inspect.CO_GENERATOR,
    "asynchronous generator": inspect.CO_ASYNC_GENERATOR,
}


class RemoteFunction(Described):
    # The object whose method it is, if plain data has one of that name too, and what kind it is.
    remote_owner, remote_kind = None, ""
    # For `inspect` it is a function.
    __class__ = property(lambda _: types.FunctionType)
    __code__ = property(lambda self: types.SimpleNamespace(co_flags=FLAGS.get(self.remote_kind, 0)))

    def __get__(self, owner, kind=None):
        return self if owner is None or self.remote_kind == "builtin" else types.MethodType(self, owner)

    def __call__(self, *args, **kwargs):
        value, owner = call(self, args, kwargs, f"{self.remote_origin}()"), self.remote_owner
        if owner is not None and self.remote_origin.endswith(".copy"):
            return owner.remote_alike(value)
        return value if owner is None else doubt(owner, value, self.remote_origin, True)


class RemoteClass(Described):
    """A class of the solution; for `inspect` it is one."""

    __class__ = property(lambda _: type)
    remote_bases, remote_fields, remote_names = (), None, ()

    def __setattr__(self, name, value):
        ask({"op": "set", "target": self.remote_reference(), "name": name, "args": pack([value])}, "")

    def __call__(self, *args, **kwargs):
        arguments = copy_of_plain([*args, *kwargs.values()])
        value = call(self, args, kwargs, self.remote_origin)
        if isinstance(value, RemoteObject):
            is_made = self.remote_origin[:1].isupper()
            made_objects.append(value.remote_know(remote_arguments=arguments, remote_is_made=is_made))
        return value

    def __getitem__(self, _):
        """A generic class with its parameters."""
        if "__class_getitem__" not in self.remote_names:
            raise TypeError("the class is not generic")
        return self

    def __instancecheck__(self, other):
        holds = isinstance(other, RemoteObject) and self.__subclasscheck__(other.remote_class)
        if holds:
            believe(other)
        return holds

    def __subclasscheck__(self, other):
        return type(other) is RemoteClass and self.remote_number in (other.remote_number, *other.remote_bases)

    @property
    def __bases__(self):
        return (*(classes[it] for it in self.remote_bases if it in classes), object)


# The stand-ins' own would be found before the solution's.
for stand_in in (RemoteFunction, RemoteClass):
    stand_in.__doc__, stand_in.__module__ = fact("__doc__"), fact("__module__")


class RemoteObject(Remote):
    """An object of the solution."""

    # Its attributes as they were when it came, when that was, its class, and what the tests made it of.
    remote_state = remote_born = remote_class = remote_arguments = None
    # Whether the tests made it by a name that classes have, or got it by operators from such.
    remote_is_made = False

    def remote_special(self, name, *args):
        if args:
            handed.add(self.remote_number)
        is_revealing = name in REVEALING and not all(isinstance(it, RemoteObject) for it in args)
        value = ask({"op": name, "target": self.remote_reference(), "args": pack(list(args))}, f"{self.remote_origin} {name}")
        if is_revealing and not isinstance(value, Remote):
            raise give_up(f"an object of the solution was told what is expected ({self.remote_origin}, asked for {name})")
        says_what = name != "__getitem__" and not all(isinstance(it, RemoteObject) for it in args)
        return doubt(self, value if is_revealing else self.remote_alike(value), name, says_what)

    def remote_alike(self, value):
        """An object that is expected to be one if this is."""
        if isinstance(value, RemoteObject):
            value.remote_know(remote_is_made=self.remote_is_made)
        return value

    def remote_told(self):
        """Its attributes as they are now, and its content if it has one."""
        state = ask({"op": "state", "target": self.remote_reference()}, "")
        return state if type(state) is list and state and type(state[0]) is dict else [{}]

    @property
    def __dict__(self):
        believe(self)
        return self.remote_told()[0]

    def __dir__(self):
        return ask({"op": "dir", "target": self.remote_reference()}, "")

    def __hash__(self):
        return plain(ask({"op": "__hash__", "target": self.remote_reference()}, ""), int)

    def __eq__(self, other):
        if isinstance(other, RemoteObject):
            return self is other or are_equal(self, other)
        told = self.remote_told() if self.remote_is_made else self.remote_state or []
        content = told[1:] if type(other) in PLAIN_KINDS and other is not None else []
        if other is not None and not content:
            doubt(self, True, "__eq__")
        return content == [other]

    def __ne__(self, other):
        return not self == other

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in telling:
            believe(self)
        value = self.remote_get(name)
        if isinstance(value, RemoteFunction):
            handed.add(self.remote_number)
            value.remote_know(remote_owner=None if name in telling else self)
        return value if name in METHOD_NAMES else doubt(self, value, name)

    def __setattr__(self, name, value):
        believe(self)
        ask({"op": "set", "target": self.remote_reference(), "name": name, "args": pack([value])}, "")

    def __delattr__(self, name):
        believe(self)
        ask({"op": "delete", "target": self.remote_reference(), "name": name}, "")

    def __copy__(self):
        return self.remote_alike(ask({"op": "__copy__", "target": self.remote_reference()}, self.remote_origin))

    def __deepcopy__(self, _):
        return self.remote_alike(ask({"op": "__deepcopy__", "target": self.remote_reference()}, self.remote_origin))

    def __reduce_ex__(self, _):
        raise give_up(f"an object of the solution stands where the tests expect plain data ({self.remote_origin})")


def is_swallowed(answer, error, trace):
    """Whether an exception ends with a block: the object's own affair, unless the exception may be its own fault."""
    lines = [it.lineno for it in traceback.extract_tb(trace) if it.filename == "tests.py"]
    if answer is True and error is not None and (getattr(error, "is_of_solution", False) or touching & set(lines)):
        raise give_up("the solution swallows an exception of its own, and what the tests do after it is not seen")
    return answer is True


class Abilities:
    """Special methods that only those objects have whose class was told to have them."""

    def __call__(self, *args, **kwargs):
        believe(self)
        return call(self, args, kwargs, f"{self.remote_origin}()")

    def __enter__(self):
        believe(self)
        return self.remote_special("__enter__")

    def __exit__(self, kind, error, trace):
        return is_swallowed(self.remote_special("__exit__", kind, error, None), error, trace)

    async def __aenter__(self):
        believe(self)
        return await self.remote_special("__aenter__")

    async def __aexit__(self, kind, error, trace):
        return is_swallowed(await self.remote_special("__aexit__", kind, error, None), error, trace)

    def __aiter__(self):
        return self.remote_special("__aiter__")

    async def __anext__(self):
        return ask({"op": "anext", "target": self.remote_reference()}, self.remote_origin)

    def __iter__(self):
        iterator = ask({"op": "__iter__", "target": self.remote_reference()}, f"{self.remote_origin}[]")
        if not isinstance(iterator, RemoteIterator):
            raise give_up("the solution has an iterator that is none")
        doubt(self, "its items", "__iter__")
        return iterator


class RemoteIterator(RemoteObject):
    """An iterator; one that has ended stays so, as those of plain data do."""

    remote_ended = False

    def __iter__(self):
        return self

    def __next__(self):
        if self.remote_ended and (self.remote_number, self.remote_origin) not in believed:
            raise StopIteration
        try:
            return ask({"op": "next", "target": self.remote_reference()}, self.remote_origin)
        except StopIteration:
            self.remote_know(remote_ended=True)
            raise


class RemoteGenerator(RemoteIterator):
    __class__ = property(lambda _: types.GeneratorType)


def forward(name, kind=None):
    def method(self, *args):
        value = self.remote_special(name, *args)
        return value if kind is None else plain(value, kind)

    return method


ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor".split()
KINDS = {
    **dict.fromkeys("getitem setitem delitem lt le gt ge neg pos abs invert round reversed trunc floor ceil".split()),
    **{prefix + name: None for name in ARITHMETIC for prefix in ("", "r", "i") if name != "divmod" or not prefix},
    **{"len": int, "contains": bool, "float": float, "int": int, "index": int, "bytes": bytes, "complex": complex, "format": str},
}
for operation, kind in KINDS.items():
    setattr(Abilities, f"__{operation}__", forward(f"__{operation}__", kind))
for operation, kind in {"bool": bool, "str": str, "repr": str}.items():
    setattr(RemoteObject, f"__{operation}__", forward(f"__{operation}__", kind))
ABILITIES = {name: it for name, it in vars(Abilities).items() if isinstance(it, types.FunctionType)}
# What an object can be asked by operators, of either side.
SPECIAL = {*ABILITIES, "__next__", "__bool__", "__str__", "__repr__", "__eq__", "__ne__", "__hash__"}


@functools.cache
def able(kind, names):
    """A stand-in's class with the special methods that are named."""
    methods = {name: ABILITIES[name] for name in names if name in ABILITIES and (name != "__iter__" or kind is RemoteObject)}
    return type(kind.__name__, (kind,), {**methods, **({} if "__hash__" in names else {"__hash__": None})})


async def awaited(number, origin):
    return ask({"op": "await", "target": {"ref": number}}, origin)


def plain(value, kind):
    if type(value) is not kind:
        raise give_up(f"the solution answered {type(value).__name__} where {kind.__name__} belongs")
    return value


def type_of(value):
    """`type` of one argument, and `__class__`."""
    return getattr(value, "remote_class", None) or getattr(value, "__class__", type(value))


# Enumerations: made here of names and values, all told at once, so that no question shows which member is expected.

enums = {}


class RemoteEnumMeta(enum.EnumMeta):
    def __getattr__(cls, name):
        if name.startswith("_") or cls not in enums.values():
            raise AttributeError(name)
        if name in cls.__members__:
            return cls.__members__[name]
        value = ask({"op": "get", "target": refer(cls), "name": name}, f".{name}")
        # One member under several names would be whichever is expected.
        if isinstance(value, cls):
            raise AttributeError(name)
        return value


def attribute_of_member(self, name):
    if name.startswith("_"):
        raise AttributeError(name)
    return ask({"op": "get", "target": refer(self), "name": name}, f".{name}")


KINDS_OF_ENUMS = {
    "Enum": (enum.Enum,),
    "int": (int, enum.Enum),
    "str": (str, enum.Enum),
    "IntEnum": (enum.IntEnum,),
    "Flag": (enum.Flag,),
    "IntFlag": (enum.IntFlag,),
}


def resolve_enum(number, name, kind, members):
    if numbered(number) not in enums:
        members = [(str(key), decode(value, resolve_nothing)) for key, value in members]
        base = types.new_class("RemoteEnum", KINDS_OF_ENUMS[kind], {"metaclass": RemoteEnumMeta})
        base.__getattr__ = attribute_of_member
        made = base(str(name), members)
        if len(list(made)) != len(members) and "Flag" not in kind:
            raise NotPlain("the solution has an enumeration whose members are not all different")
        enums[number] = made
    return enums[number]


def resolve_member(kind, name, value):
    kind = resolve("ec", kind["ec"])
    return kind[name] if name in kind.__members__ else kind(decode(value, resolve_nothing))


def number_of_enum(kind):
    return next((number for number, it in enums.items() if it is kind), None)


def is_object(value):
    return isinstance(value, enum.Enum) and number_of_enum(type(value)) is not None


# What comes from the solution.

classes, exceptions = {}, {}
callbacks, made_objects = [], []
# Objects that the tests have given to the solution, as an argument or by calling a method.
handed = set()


class Last:
    """Where what is being read came from, and how much was asked."""

    origin, n_asked = "", 0
    # What the solution did to arguments, and whether the tests are in the middle of a comparison.
    changes, is_comparing = [], False


def numbered(number):
    if type(number) is not int:
        raise NotPlain("the solution sent something unreadable")
    return number


def resolve_nothing(tag, _):
    raise NotPlain(f"a {tag} is no plain data")


def is_data_type(kind):
    return kind in (*PLAIN_KINDS, object) or (isinstance(kind, type) and issubclass(kind, BaseException))


def stands_for_data(kind):
    """Whether an object came where the tests expect plain data: they ask no object for anything, and took the function by name, its class not."""
    is_result = Last.origin.endswith("()") and Last.origin[:-2].isidentifier()
    own = classes.get(kind["k"][0]) if "k" in kind else None
    return is_result and not telling and (own is None or not own.remote_origin)


def resolve(tag, body):
    # A function that the tests took by its name is all that they must have; an object in the place of data is its content.
    is_known = (tag == "f" and Last.origin.isidentifier()) or (tag == "o" and stands_for_data(body[1]))
    Ending.is_plain = Ending.is_plain and is_known
    if tag == "f":
        return RemoteFunction(numbered(body[0]), Last.origin).remote_know(remote_kind=body[1])
    if tag == "co":
        return awaited(numbered(body), Last.origin)
    if tag == "cb" and 0 <= numbered(body):
        return callbacks[body]
    if tag == "bt" and is_data_type(getattr(builtins, body, None)):
        return getattr(builtins, body)
    if tag == "k":
        return named(resolve_class(*body))
    if tag == "ex":
        return exception_named(body)
    if tag == "er":
        return resolve_error(*body)
    if tag == "ec":
        return resolve_enum(*body)
    if tag == "en":
        return resolve_member(*body)
    if tag in ("o", "it"):
        return resolve_object(RemoteObject if tag == "o" else RemoteIterator, *body)
    raise NotPlain("the solution sent something unreadable")


def resolve_object(stand_in, number, kind, state):
    own = resolve_class(*kind["k"]) if "k" in kind else None
    is_generator = stand_in is RemoteIterator and "k" in kind and kind["k"][1] == "generator"
    kind_here = able(RemoteGenerator if is_generator else stand_in, own.remote_names if own else ("__hash__",))
    state = None if state is None else decode(state, resolve_nothing)
    value = kind_here(numbered(number), Last.origin)
    return value.remote_know(remote_class=own, remote_state=state, remote_born=Last.n_asked)


def resolve_class(number, name, bases, fields, names):
    """A class of the solution: the same for the same number, as it was told at first."""
    if numbered(number) not in classes:
        bases, names = [numbered(it) for it in bases], tuple(str(it) for it in names)
        classes[number] = RemoteClass(number, "").remote_know(remote_bases=bases, remote_fields=fields, remote_names=names)
    return classes[number]


def named(kind):
    """A class as the tests know it: by the name that they took it by, a function's before a class's."""
    if Last.origin.isidentifier() and not kind.remote_origin[:1].islower():
        kind.remote_know(remote_origin=Last.origin)
    return kind


def exception_named(names):
    """The exception of Python's own with that name, or one made here with its bases."""
    module, name = map(str, names[0])
    # Those of `unittest` say what becomes of a test, which is not the solution's to say.
    own = sys.modules.get(module) if module.partition(".")[0] in sys.stdlib_module_names - {"unittest"} else None
    found = getattr(own, name, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        return found
    Ending.is_plain, key = False, (module, name)
    if key not in exceptions:
        facts = {"__init__": make_there, "__str__": lambda it: it.solution_text, "solution_text": "", "__module__": module}
        exceptions[key] = type(name.rpartition(".")[2], (exception_named(names[1:]),), facts)
    return exceptions[key]


def make_there(error, *args, **kwargs):
    """An exception of the solution that the tests make: its text and attributes are told."""
    question = {"op": "exception", "target": {"ex": names_of(type(error))}, "args": pack(list(args)), "kwargs": pack(kwargs)}
    text, error.args, attributes = ask(question, type(error).__name__)
    tell_attributes(error, text, attributes)


# What goes to the solution.


def refer(value):
    Ending.is_plain = False
    if isinstance(value, Remote):
        reference = value.remote_reference()
        handed.add(reference["ref"])
        return reference
    if isinstance(value, enum.Enum) and is_object(value):
        return {"en": [number_of_enum(type(value)), value.name, encode(value.value, only_plain)]}
    if isinstance(value, enum.EnumMeta) and number_of_enum(value) is not None:
        return {"ref": number_of_enum(value)}
    if isinstance(value, types.CoroutineType) and value.cr_code is awaited.__code__ and value.cr_frame is not None:
        return {"ref": value.cr_frame.f_locals["number"]}
    if is_builtin(value):
        return {"bt": value.__name__}
    if value is NotImplemented:
        return {"bt": "NotImplemented"}
    if isinstance(value, type) and issubclass(value, BaseException):
        exceptions.setdefault(("tests", value.__qualname__), value)
        return {"ex": names_of(value)}
    if isinstance(value, BaseException):
        # A class of the tests is remembered by being sent.
        refer(type(value))
        return {"er": [names_of(type(value)), encode(list(value.args), refer)]}
    if hasattr(type(value), "__next__") and not is_shown(value):
        return {"gen": number_of_callback(value.__next__)}
    facts = [getattr(value, name, None) for name in ("__name__", "__doc__")]
    return {"cb": [number_of_callback(value), *(it if type(it) is str else None for it in facts), *special_methods(value)]}


def is_builtin(value):
    return isinstance(value, type) and getattr(builtins, value.__name__, None) is value


def number_of_callback(value):
    is_method = isinstance(value, (types.MethodType, types.BuiltinMethodType))
    for number, known in enumerate(callbacks):
        if known is value or (is_method and type(known) is type(value) and known == value):
            return number
    callbacks.append(value)
    return len(callbacks) - 1


MOCK_NAMES = set(dir(unittest.mock.MagicMock()))
# Objects of Python's own whose methods do nothing but what they say.
SHOWN_KINDS = (unittest.mock.NonCallableMock, io.StringIO, io.BytesIO, types.SimpleNamespace, random.Random, queue.Queue)


def is_shown(value):
    """Whether the solution may use an object's methods and attributes: one of a class of the tests, a mock, or a stream of text."""
    own = [kind for kind in type(value).__mro__ if kind.__module__ == "__main__" and globals().get(kind.__name__) is not kind]
    return bool(own) or isinstance(value, SHOWN_KINDS)


def special_methods(value):
    """What an object that is shown can do by operators and the like."""
    defined = {name for kind in type(value).__mro__[:-1] for name, it in vars(kind).items() if it is not None}
    return sorted(defined & SPECIAL) if is_shown(value) else []


def pack(value):
    return encode(value, refer)


def identity(value):
    return getattr(value, "remote_number", None) or id(value)


# Asking the solution.

turn = threading.RLock()
streams = {"stdin": sys.stdin, "input": builtins.input, "print": builtins.print}


def replaced_streams():
    """What the tests have put in the place of standard input, `input` and `print`."""
    found = {name: getattr(builtins, name) for name in ("input", "print") if getattr(builtins, name) is not streams[name]}
    facts = {name: number_of_callback(it) for name, it in found.items()}
    return facts if sys.stdin is streams["stdin"] else {**facts, "stdin": sys.stdin.read()}


def exchange(question):
    """The solution's whole answer, once its questions to the tests' own functions are answered."""
    Last.n_asked += 1
    streams_now = replaced_streams()
    send(outgoing, {**question, **streams_now})
    while True:
        line = incoming.readline(MAX_ANSWER)
        if not line.endswith(b"\n"):
            Ending.is_refuted = True
            raise NotPlain("the solution ended its process" if len(line) < MAX_ANSWER else "the solution answers too much")
        answer = json.loads(line)
        pass_on(answer.get("printed"), sys.stdout, sys.__stdout__)
        pass_on(answer.get("complained"), sys.stderr, sys.__stderr__)
        if "callback" not in answer:
            give_back(answer.get("unread"), streams_now.get("stdin"))
            return answer
        send(outgoing, answer_callback(answer))


def give_back(unread, text):
    """Leaves in standard input what the solution has not read."""
    if type(unread) is str and text is not None and text.endswith(unread) and unread and sys.stdin.seekable():
        sys.stdin.seek(sys.stdin.tell() - len(unread))


def pass_on(printed, stream, own):
    """What the solution printed, for tests that look at it."""
    if type(printed) is str and stream is not own:
        stream.write(printed)


def answer_callback(message):
    Last.origin = "a function of the tests"
    target = callbacks[max(numbered(message["callback"]), 0)]
    try:
        return {"returned": pack(use_callback(target, message))}
    except Exception as error:
        return {"raised": pack(error)}


def use_callback(target, message):
    args = decode(message.get("args", []), resolve)
    name = message.get("get", message.get("set"))
    if message.get("special") in special_methods(target):
        return getattr(type(target), message["special"])(target, *args)
    if name is None:
        return target(*args, **decode(message["kwargs"], resolve))
    is_mock = isinstance(target, unittest.mock.NonCallableMock)
    is_hidden = (is_mock and name in MOCK_NAMES) or (isinstance(target, unittest.TestCase) and hasattr(unittest.TestCase, name))
    if type(name) is not str or name.startswith("_") or not is_shown(target) or is_hidden:
        raise AttributeError(name)
    if "set" in message and not is_mock:
        return setattr(target, name, *args)
    return getattr(target, name)


def ask(question, origin, after=lambda answer: None):
    """What the solution answers, as a value or an exception."""
    with turn:
        if Ending.failure is not None:
            raise SolutionError(Ending.failure)
        try:
            for change_made in changes():
                exchange({"op": "fill", "args": pack(change_made)})
            answer = exchange(question)
            Last.origin = origin
            problem = raised(answer, question["op"]) if "error" in answer else None
            if question["op"] == "call" and problem is None:
                is_changed = any(answer[it] != question[it] for it in ("args", "kwargs"))
                Ending.is_plain = Ending.is_plain and not is_changed and answer.get("free") is True
            value = decode(answer["value"], resolve) if problem is None else None
            if problem is None:
                after(answer)
                borrow(answer.get("container"), value)
                later = [(lent.get(number), decode(content, resolve)) for number, content in answer.get("later", [])]
                change([pair for pair in later if only_adds(*pair)])
        except NotPlain as error:
            raise give_up(str(error)) from None
        except Exception as error:
            raise give_up(f"the solution's process answers nonsense ({type(error).__name__})") from None
    if problem is not None:
        raise problem
    return value


ENDS = {"next": "StopIteration", "anext": "StopAsyncIteration"}


def raised(answer, operation):
    """What the solution raised, as an exception of Python's own or one made here."""
    names = [[str(part) for part in pair] for pair in answer["error"]]
    name = names[0][1]
    if ENDS.get(operation) == name:
        return getattr(builtins, name)()
    kind = exception_named(names)
    # Raised from anything else, these would quietly end a loop of the tests.
    if issubclass(kind, (StopIteration, StopAsyncIteration, GeneratorExit)):
        return give_up(f"the solution raised {name}")
    error = resolve_error(names, answer["details"])
    tell_attributes(error, answer["text"], decode(answer["attributes"], resolve))
    error.__cause__ = next((decode(it, resolve) for it in answer["cause"]), None)
    error.is_of_solution = True
    return error


def resolve_error(names, details):
    kind, details = exception_named(names), decode(details, resolve)
    try:
        return kind.__new__(kind, *details) if kind in exceptions.values() else kind(*details)
    except Exception:
        return kind.__new__(kind, *details)


def tell_attributes(error, text, attributes):
    for name, value in attributes.items():
        if not name.startswith("_"):
            try:
                setattr(error, name, value)
            except Exception:
                # Python's own exceptions have attributes that cannot be set: they follow from the arguments.
                continue
    error.solution_text = str(text)


def call(target, args, kwargs, origin):
    args = list(args)

    def after(answer):
        # Functions may work on their arguments in place; tests look at them afterwards.
        now = decode(answer["kwargs"], resolve)
        pairs = [*zip(args, decode(answer["args"], resolve)), *((before, now[name]) for name, before in kwargs.items())]
        change(pairs)

    question = {"op": "call", "target": target.remote_reference(), "args": pack(args), "kwargs": pack(kwargs)}
    return ask({**question, "given": [lend(it) for it in args]}, origin, after)


def only_adds(old, new):
    """Whether all that was in a container still is: what the tests gave once they may need as it was."""
    if type(old) is not type(new):
        return False
    if isinstance(old, dict):
        new = {it: new[it] for it in old if it in new}
    return text_of(new[: len(old)] if isinstance(old, list) else new) == text_of(old) or (isinstance(old, set) and old <= new)


def change(pairs):
    """Changes containers. In one comparison none gets shorter, or emptying them would make all references agree."""
    for old, new in pairs:
        if Last.is_comparing and isinstance(old, (list, dict, set)) and type(old) is type(new) and len(new) < len(old):
            Last.changes.append((old, new))
        else:
            refresh(old, new)


def hold():
    Last.is_comparing = True


def release():
    pairs, Last.changes, Last.is_comparing = Last.changes, [], False
    change(pairs)


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
    elif type(old).__module__ == "numpy" and old.shape == new.shape and old.shape:
        old[...] = new


def kept(before, now):
    """A container inside a container stays the same object, so that others who hold it see the change."""
    if isinstance(before, (list, dict, set, bytearray)) and type(before) is type(now):
        refresh(before, now)
        return before
    if isinstance(before, Remote) and isinstance(now, Remote) and before.remote_number == now.remote_number:
        return before
    return now
