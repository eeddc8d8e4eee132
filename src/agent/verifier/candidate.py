"""Runs a student's solution and answers questions about it. Trusted by nobody.

It shares a process with the solution, so everything it says may be the solution's own invention:
that is no more than what the solution could have returned in the first place. It never sees what
answers are expected.
"""

import ast
import asyncio
import builtins
import copy
import dataclasses
import enum
import functools
import importlib.util
import inspect
import io
import operator

questions, answers = take_over()
sys.path.insert(0, os.getcwd())
objects, numbers = [], {}
# Classes that the tests have taken by name: what is made of them is an object, never plain data.
taken = set()

MAX_PRINTED = 1 << 16
FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    functools.partial,
    type(functools.lru_cache(lambda: None)),
)
KINDS_OF_FUNCTIONS = {
    "coroutine": inspect.iscoroutinefunction,
    "generator": inspect.isgeneratorfunction,
    "asynchronous generator": inspect.isasyncgenfunction,
}
REPLACEABLE = {name: getattr(builtins, name) for name in ("input", "print")}


def is_object(value):
    return type(value) in taken or (isinstance(value, enum.Enum) and type(value).__module__ in own_names())


def own_names():
    """The solution's modules, wherever they were imported from."""
    own = [name for name, it in list(sys.modules.items()) if (getattr(it, "__file__", None) or "").startswith(os.getcwd())]
    return {"__main__", *own}


def remember(value):
    """A number for an object that stays here; the same for the same object."""
    if id(value) not in numbers:
        numbers[id(value)] = len(objects)
        objects.append(value)
    return numbers[id(value)]


# The objects themselves are here.
identity = id

SIMPLE = (type(None), bool, int, float, str, bytes, tuple, list, dict, set, frozenset)


def is_free(values):
    """Whether values are builtin data that nobody else holds: a copy of them is as good then."""
    for it in values:
        if type(it) not in SIMPLE or (type(it) in (list, dict, set) and sys.getrefcount(it) > 3):
            return False
        if type(it) in SIMPLE[6:] and not is_free(it.values() if type(it) is dict else it):
            return False
    return True


def refer(value):
    if isinstance(value, Callback):
        return {"cb": value.callback_number}
    if isinstance(value, BaseException):
        return {"er": [names_of(type(value)), encode(list(value.args), refer)]}
    if isinstance(value, type):
        return refer_class(value)
    if isinstance(value, FUNCTIONS):
        kind = next((name for name, holds in KINDS_OF_FUNCTIONS.items() if holds(value)), "")
        kind = kind if isinstance(value, types.FunctionType) else kind or "builtin"
        return {"f": [remember(value), kind]}
    if isinstance(value, types.CoroutineType):
        return {"co": remember(value)}
    if is_object(value) and isinstance(value, enum.Enum):
        return {"en": [refer_class(type(value)), value.name, encode(value.value, no_reference)]}
    kind = "it" if hasattr(value, "__next__") else "o"
    return {kind: [remember(value), refer_class(type(value)), state_of(value)]}


def refer_class(value):
    if getattr(builtins, value.__name__, None) is value:
        return {"bt": value.__name__}
    if issubclass(value, BaseException):
        return {"ex": names_of(value)}
    if issubclass(value, enum.Enum):
        members = [[it.name, encode_value(it)] for it in value]
        return {"ec": [remember(value), value.__name__, kind_of_enum(value), members]}
    bases = [remember(base) for base in value.__mro__[1:-1]]
    fields = [it.name for it in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else None
    return {"k": [remember(value), value.__name__, bases, fields, special_names(value)]}


@functools.cache
def special_names(kind):
    """The special methods that a class has and not every object."""
    names = [name for name in dir(kind) if name.startswith("__") and getattr(kind, name, None) is not getattr(object, name, None)]
    return [*(it for it in names if getattr(kind, it, None) is not None), *(["__hash__"] if kind.__hash__ is object.__hash__ else [])]


def encode_value(member):
    """The value of an enumeration's member; its name where it is no plain data."""
    try:
        return encode(member.value, no_reference)
    except ValueError:
        return member.name


def kind_of_enum(value):
    kinds = (enum.IntFlag, enum.Flag, enum.IntEnum, int, str)
    return next((kind.__name__ for kind in kinds if issubclass(value, kind)), "Enum")


def state_of(value):
    """The attributes of an object, and its content if it is a list, a dictionary or the like; none if it is no plain data."""
    try:
        slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
        state = {name: getattr(value, name) for name in slots if name != "__dict__"}
        return encode([{**state, **getattr(value, "__dict__", {})}, *content_of(value)], no_reference)
    except Exception:
        return None


def content_of(value):
    """A subclass of plain data as that data, in a list; or nothing."""
    for kind in (dict, list, tuple, set, frozenset, str, int, float, bytes):
        if isinstance(value, kind):
            return [kind(value) if kind is not dict else dict(dict.items(value))]
    return []


def no_reference(value):
    raise ValueError(type(value))


def ask_back(message):
    """Asks the tests, and serves what they ask before they answer."""
    send(answers, message)
    while True:
        message = json.loads(questions.readline())
        if "returned" in message:
            return decode(message["returned"], resolve)
        if "raised" in message:
            raise decode(message["raised"], resolve)
        serve(message)


class Callback:
    """A function or an object of the tests, used from here."""

    def __init__(self, number, name=None, text=None):
        facts = {"__name__": name or "function", "__qualname__": name or "function", "__doc__": text, "__module__": "tests"}
        vars(self).update(callback_number=number, **facts)

    def __call__(self, *args, **kwargs):
        facts = {"args": encode(list(args), refer), "kwargs": encode(kwargs, refer)}
        return ask_back({"callback": self.callback_number, **facts})

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return ask_back({"callback": self.callback_number, "get": name})

    def __setattr__(self, name, value):
        ask_back({"callback": self.callback_number, "set": name, "args": [encode(value, refer)]})


class Drawn(Callback):
    """An iterator of the tests."""

    def __iter__(self):
        return self

    def __next__(self):
        return self()


def forward(name):
    def method(self, *args):
        return ask_back({"callback": self.callback_number, "special": name, "args": encode(list(args), refer)})

    return method


@functools.cache
def callback(kind, number, name=None, text=None, *special):
    """The same for the same; it has the special methods that are named."""
    methods = {it: forward(it) for it in special if it != "__call__"}
    return type(name or kind.__name__, (kind,), methods)(number, name, text)


made_exceptions = {}


def exception_named(names):
    """An exception's class: Python's, the solution's, or one of the tests made here with its bases."""
    module, name = names[0]
    found = getattr(sys.modules.get(module), name, None) or made_exceptions.get((module, name))
    if not isinstance(found, type):
        found = made_exceptions[module, name] = type(name, (exception_named(names[1:]),), {"__module__": module})
    return found


def resolve(tag, body):
    if tag == "bt":
        return getattr(builtins, body)
    if tag == "ex":
        return exception_named(body)
    if tag == "er":
        kind, args = exception_named(body[0]), decode(body[1], resolve)
        return kind.__new__(kind, *args)
    if tag == "cb":
        return callback(Callback, *body)
    if tag == "gen":
        return callback(Drawn, body)
    if tag == "en":
        kind = objects[body[0]]
        return kind[body[1]] if body[1] in kind.__members__ else kind(decode(body[2], resolve))
    return objects[body]


def load(name, is_own):
    module = own_module(name) if is_own else importlib.import_module(name)
    public = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    defined = names_defined(module)
    names = [it for it in public if it in defined and not isinstance(getattr(module, it, None), types.ModuleType)]
    functions = [it for it in names if isinstance(getattr(module, it), types.FunctionType)]
    return {
        "module": remember(module),
        "names": names,
        "functions": [it for it in functions if not it.startswith("_") and getattr(module, it).__module__ == name],
        "package": hasattr(module, "__path__"),
        "doc": module.__doc__,
    }


def names_defined(module):
    """What a module's text binds itself, or takes from other modules of the solution."""
    with open(module.__file__, encoding="utf-8") as file:
        nodes = list(ast.walk(ast.parse(file.read())))
    names = {it.id for it in nodes if isinstance(it, ast.Name) and not isinstance(it.ctx, ast.Load)}
    names |= {it.name for it in nodes if isinstance(it, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "") in own_names()):
            names |= {it.asname or it.name for it in node.names}
    return names


def own_module(name):
    """A module of the solution that has the name of one of Python's own."""
    path = os.path.join(os.getcwd(), name)
    path = os.path.join(path, "__init__.py") if os.path.isdir(path) else path + ".py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def take(target, name):
    """An attribute by name; a class that is taken so makes objects from now on."""
    value = getattr(target, name)
    if isinstance(value, type) and isinstance(target, types.ModuleType):
        taken.add(value)
    return value


def signature_of(function):
    signature = inspect.signature(function)
    parts = [[it.name, int(it.kind), it.default is not it.empty, it.default, it.annotation] for it in signature.parameters.values()]
    facts = [*parts, ["return", 0, False, None, signature.return_annotation]]
    for fact in facts:
        fact[3:] = [fact[3] if fact[2] else None, None if fact[4] is inspect.Parameter.empty else fact[4]]
    return facts


def fill(number, content):
    """Leaves in a container what the tests have left in it."""
    target = lent.get(number, type(content)())
    target.clear()
    (target.update if isinstance(target, (dict, set)) else target.extend)(content)


def made_exception(kind, *args, **kwargs):
    error = kind(*args, **kwargs)
    return [str(error), list(error.args), attributes_of(error)]


@functools.cache
def loop():
    return asyncio.new_event_loop()


OF_BUILTINS = "iter len bool str repr float int round divmod hash format bytes complex reversed".split()
OPERATIONS = {
    **{f"__{name}__": getattr(builtins, name) for name in OF_BUILTINS},
    "next": next,
    "__copy__": copy.copy,
    "__deepcopy__": copy.deepcopy,
    "await": lambda it: loop().run_until_complete(it),
    "anext": lambda it: loop().run_until_complete(type(it).__anext__(it)),
    "get": take,
    "set": setattr,
    "delete": delattr,
    "state": lambda it: decode(state_of(it), None),
    "signature": signature_of,
    "dir": lambda it: [name for name in dir(it) if not name.startswith("_")],
    "asdict": dataclasses.asdict,
    "astuple": dataclasses.astuple,
    "call": lambda it, *args, **kwargs: it(*args, **kwargs),
    "replace": dataclasses.replace,
    "exception": made_exception,
}


def operation_named(name):
    """What Python does for a special method, with the turns of its operands."""
    if name in OPERATIONS:
        return OPERATIONS[name]
    word = name.strip("_")
    if name.startswith("__r") and hasattr(operator, f"__{word[1:]}__"):
        return lambda target, other: getattr(operator, f"__{word[1:]}__")(other, target)
    if hasattr(operator, name):
        return getattr(operator, name)
    return lambda target, *args: getattr(type(target), name)(target, *args)


def do(message, args, kwargs):
    operation = message["op"]
    if operation == "import":
        return load(message["name"], message["own"])
    if operation == "seed":
        return __import__("random").seed(*args)
    if operation == "fill":
        return fill(*args)
    named = [message["name"]] if "name" in message else []
    return operation_named(operation)(decode(message["target"], resolve), *named, *args, **kwargs)


class Heard(io.TextIOBase):
    """Standard output, of which the tests may want to know."""

    def __init__(self, stream):
        self.stream, self.text, self.n_chars = stream, [], 0

    def write(self, text):
        if self.n_chars < MAX_PRINTED:
            self.text.append(text[:MAX_PRINTED])
            self.n_chars += len(text)
        return self.stream.write(text)

    def flush(self):
        self.stream.flush()

    def fileno(self):
        return self.stream.fileno()

    def isatty(self):
        return False

    def take(self):
        text, self.text, self.n_chars = "".join(self.text), [], 0
        return text


heard = sys.stdout = Heard(sys.stdout)
heard_errors = sys.stderr = Heard(sys.stderr)


def all_heard():
    return {"printed": heard.take(), "complained": heard_errors.take()}


def replace_streams(message):
    """What the tests put in the place of standard input, `input` and `print`; what gives the text that was not read."""
    for name, original in REPLACEABLE.items():
        setattr(builtins, name, callback(Callback, message[name]) if name in message else original)
    if "stdin" not in message:
        return lambda: None
    sys.stdin = text = io.StringIO(message["stdin"])
    return text.read


def serve(message):
    """Answers a question, with its arguments as they are afterwards."""
    unread = lambda: None
    try:
        unread = replace_streams(message)
        args = decode(message.get("args", []), resolve)
        kwargs = decode(message.get("kwargs", {"d": []}), resolve)
        result = [do(message, args, kwargs)]
        held_by_others = (result if type(result[0]) in SIMPLE else (), args, kwargs.values())
        facts = {"value": encode(result[0], refer), "free": all(map(is_free, held_by_others))}
        facts.update(args=encode(args, refer), kwargs=encode(kwargs, refer), container=lend(result[0]))
        facts["later"] = [[number, encode(value, refer)] for number, value in changes()]
        for number, arg in zip(message.get("given", []), args):
            borrow(number, arg)
        send(answers, {**facts, **all_heard(), "unread": unread()})
    except BaseException as error:
        facts = {"error": names_of(type(error)), **all_heard(), "unread": unread()}
        send(answers, {**facts, **details_of(error)})


def details_of(error):
    """What can be told about an exception."""
    try:
        facts = {"text": str(error)[:2000], "details": encode(list(error.args), refer)}
        cause = [encode(it, refer) for it in [error.__cause__] if it is not None]
        return {**facts, "attributes": encode(attributes_of(error), refer), "cause": cause}
    except BaseException:
        return {"text": "", "details": [], "attributes": {"d": []}, "cause": []}


def attributes_of(error):
    """What its class gives an exception: its methods as functions."""
    named = [name for name in dir(error) if not name.startswith("_") and not hasattr(BaseException, name)]
    return {name: getattr(error, name) for name in named}


for line in iter(questions.readline, b""):
    serve(json.loads(line))
