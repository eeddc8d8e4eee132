"""Runs a student's solution and answers questions about it. Trusted by nobody.

It shares a process with the solution, so everything it says may be the solution's own invention:
that is no more than what the solution could have returned in the first place. It never sees what
answers are expected.
"""

import builtins
import copy
import functools
import importlib.util
import io
import operator

questions, answers = take_over()
sys.path.insert(0, os.getcwd())
objects = []
numbers = {}

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


def remember(value):
    """A number for an object that stays here; the same for the same object."""
    if id(value) not in numbers:
        numbers[id(value)] = len(objects)
        objects.append(value)
    return numbers[id(value)]


def names_of(kind):
    return [base.__name__ for base in kind.__mro__]


def refer(value):
    if isinstance(value, Callback):
        return {"cb": value.number}
    if isinstance(value, type):
        if getattr(builtins, value.__name__, None) is value:
            return {"bt": value.__name__}
        return {"k": [remember(value), value.__name__, names_of(value) if issubclass(value, BaseException) else None]}
    if isinstance(value, FUNCTIONS):
        return {"f": remember(value)}
    if isinstance(value, types.CoroutineType):
        return {"co": remember(value)}
    kind = "it" if hasattr(value, "__next__") else "o"
    return {kind: [remember(value), names_of(type(value))[:-1], state_of(value)]}


def state_of(value):
    """The attributes of an object, if they are plain data."""
    try:
        slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
        state = {name: getattr(value, name) for name in slots if name != "__dict__"}
        return encode({**state, **getattr(value, "__dict__", {})}, no_reference)
    except Exception:
        return None


def no_reference(value):
    raise ValueError(type(value))


class Callback:
    """A function of the tests, called from here."""

    def __init__(self, number):
        self.number = number

    def __call__(self, *args, **kwargs):
        send(answers, {"callback": self.number, "args": encode(list(args), refer), "kwargs": encode(kwargs, refer)})
        while True:
            message = json.loads(questions.readline())
            if "returned" in message:
                return decode(message["returned"], resolve)
            if "raised" in message:
                raise getattr(builtins, message["raised"])(*message["details"])
            serve(message)


def resolve(tag, body):
    if tag == "bt":
        return getattr(builtins, body)
    if tag == "cb":
        return Callback(body)
    return objects[body]


def load(name, is_own):
    module = own_module(name) if is_own else importlib.import_module(name)
    public = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    functions = [name for name in public if isinstance(getattr(module, name, None), types.FunctionType)]
    return {
        "module": remember(module),
        "names": list(public),
        "functions": [it for it in functions if getattr(module, it).__module__ == name],
        "package": hasattr(module, "__path__"),
    }


def own_module(name):
    """A module of the solution that has the name of one of Python's own."""
    path = os.path.join(os.getcwd(), name)
    path = os.path.join(path, "__init__.py") if os.path.isdir(path) else path + ".py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OPERATIONS = {
    "__iter__": iter,
    "__len__": len,
    "__contains__": operator.contains,
    "__bool__": bool,
    "__str__": str,
    "__repr__": repr,
    "__float__": float,
    "__int__": int,
    "__round__": round,
    "__divmod__": divmod,
    "__copy__": copy.copy,
    "__deepcopy__": copy.deepcopy,
    "await": lambda it: __import__("asyncio").run(it),
    "get": getattr,
    "set": setattr,
    "next": next,
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
    target = objects[message["target"]]
    if operation == "state":
        return decode(state_of(target), None)
    if operation == "call":
        return target(*args, **kwargs)
    if "name" in message:
        args = [message["name"], *args]
    return operation_named(operation)(target, *args)


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

    def take(self):
        text, self.text, self.n_chars = "".join(self.text), [], 0
        return text


heard = sys.stdout = Heard(sys.stdout)


def serve(message):
    """Answers a question, with its arguments as they are afterwards."""
    try:
        args = decode(message.get("args", []), resolve)
        kwargs = decode(message.get("kwargs", {"d": []}), resolve)
        value = encode(do(message, args, kwargs), refer)
        changed = {"args": encode(args, refer), "kwargs": encode(kwargs, refer)}
        send(answers, {"value": value, "printed": heard.take(), **changed})
    except BaseException as error:
        send(answers, {"error": names_of(type(error)), "printed": heard.take(), **details_of(error)})


def details_of(error):
    """What can be told about an exception."""
    try:
        facts = {"text": str(error)[:2000], "details": encode(list(error.args), refer)}
        return {**facts, "attributes": encode({str(k): v for k, v in vars(error).items()}, refer)}
    except BaseException:
        return {"text": "", "details": [], "attributes": {"d": []}}


for line in iter(questions.readline, b""):
    serve(json.loads(line))
