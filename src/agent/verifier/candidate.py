"""Runs a student's solution and answers questions about it. Trusted by nobody.

It shares a process with the solution, so everything it says may be the solution's own invention:
that is no more than what the solution could have returned in the first place. It never sees what
answers are expected.
"""

import builtins
import functools
import importlib

questions, answers = take_over()
sys.path.insert(0, os.getcwd())
objects = []
numbers = {}

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
    if hasattr(value, "__next__"):
        return {"it": remember(value)}
    return {"o": [remember(value), names_of(type(value))[:-1]]}


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
                raise RuntimeError("a function of the tests failed")
            serve(message)


def resolve(tag, body):
    if tag == "bt":
        return getattr(builtins, body)
    if tag == "cb":
        return Callback(body)
    return objects[body]


def load(name):
    module = importlib.import_module(name)
    public = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    return {"module": remember(module), "names": list(public), "package": hasattr(module, "__path__")}


def do(message, args, kwargs):
    operation = message["op"]
    if operation == "import":
        return load(message["name"])
    target = objects[message["target"]]
    if operation == "get":
        return getattr(target, message["name"])
    if operation == "set":
        return setattr(target, message["name"], args[0])
    if operation == "next":
        return next(target)
    if operation == "call":
        return target(*args, **kwargs)
    return getattr(type(target), operation)(target, *args)


def serve(message):
    """Answers a question, with its arguments as they are afterwards."""
    try:
        args = decode(message.get("args", []), resolve)
        kwargs = decode(message.get("kwargs", {"d": []}), resolve)
        value = encode(do(message, args, kwargs), refer)
        send(answers, {"value": value, "args": encode(args, refer), "kwargs": encode(kwargs, refer)})
    except BaseException as error:
        try:
            details = encode(list(error.args), refer)
        except BaseException:
            details = []
        send(answers, {"error": names_of(type(error)), "text": str(error)[:2000], "details": details})


for line in iter(questions.readline, b""):
    serve(json.loads(line))
