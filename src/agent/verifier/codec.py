"""Values as JSON between the examiner and the candidate: plain builtin data, and references.

Both programs begin with this text. What is no plain data is handed to `refer`, what is no plain
JSON to `resolve`; each side decides what it lets through, by `is_object` what it keeps, and by `identity`
what is the same object.
"""

import collections
import datetime
import decimal
import fractions
import itertools
import json
import os
import pathlib
import sys
import types
import uuid

if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)


class NotPlain(BaseException):
    """A value that cannot cross. Nothing that tests catch, or they could take it for an exception of the solution."""


# What is written as its items, and how it is made of them again.
SEQUENCES = {
    **{tag: (kind, kind) for tag, kind in {"t": tuple, "s": set, "fs": frozenset, "q": collections.deque}.items()},
    "dk": (type({}.keys()), lambda items: dict.fromkeys(items).keys()),
    "dv": (type({}.values()), lambda items: dict(enumerate(items)).values()),
    "di": (type({}.items()), lambda items: dict(items).items()),
}
MAPPINGS = {"C": collections.Counter, "od": collections.OrderedDict, "d": dict}
FACTORIES = {kind.__name__: kind for kind in (int, float, str, list, dict, set, tuple, bool)}
# How it is written, and read again; a datetime is a date too, so it comes first.
ATOMS = {
    "b": (bytes, bytes.hex, bytes.fromhex),
    "ba": (bytearray, bytearray.hex, bytearray.fromhex),
    "c": (complex, lambda it: [it.real, it.imag], lambda parts: complex(*map(float, parts))),
    "r": (range, lambda it: [it.start, it.stop, it.step], lambda parts: range(*map(int, parts))),
    "F": (fractions.Fraction, lambda it: [it.numerator, it.denominator], lambda parts: fractions.Fraction(*map(int, parts))),
    "D": (decimal.Decimal, str, decimal.Decimal),
    "dt": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "da": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "ti": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "td": (datetime.timedelta, lambda it: [it.days, it.seconds, it.microseconds], lambda parts: datetime.timedelta(*map(int, parts))),
    "u": (uuid.UUID, str, uuid.UUID),
    "p": (pathlib.PurePosixPath, str, pathlib.PurePosixPath),
}


def encode(value, refer):
    """The value as JSON-able data; what `is_object` says is no plain data, whatever it is made of."""
    if is_object(value):
        return refer(value)
    if value is None or isinstance(value, (bool, str)):
        return value if value is None or type(value) in (bool, str) else str.__str__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, list):
        return [encode(item, refer) for item in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"nt": [type(value).__name__, list(value._fields), [encode(item, refer) for item in value]]}
    for tag, (kind, _) in SEQUENCES.items():
        if isinstance(value, kind):
            return {tag: [encode(item, refer) for item in value]}
    if isinstance(value, collections.defaultdict) and value.default_factory in FACTORIES.values():
        return {"dd": [value.default_factory.__name__, encode(dict(value), refer)]}
    for tag, kind in MAPPINGS.items():
        if isinstance(value, kind):
            return {tag: [[encode(k, refer), encode(v, refer)] for k, v in dict.items(value)]}
    return encode_rare(value, refer)


def encode_rare(value, refer):
    for tag, (kind, write, _) in ATOMS.items():
        if isinstance(value, kind):
            return {tag: write(value)}
    if isinstance(value, slice):
        return {"sl": [encode(it, refer) for it in (value.start, value.stop, value.step)]}
    if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        return encode_numpy(value, refer)
    return refer(value)


def encode_numpy(value, refer):
    if value.dtype.kind not in "biufU":
        return refer(value)
    items = encode(value.tolist(), refer)
    return {"np": [value.dtype.str, items]} if value.shape else items


def decode(data, resolve):
    """The value that `encode` wrote, made of builtin types only."""
    if data is None or type(data) in (bool, int, float, str):
        return data
    if type(data) is list:
        return [decode(item, resolve) for item in data]
    if type(data) is not dict or len(data) != 1:
        raise NotPlain("the solution sent something unreadable")
    (tag, body), = data.items()
    if tag in SEQUENCES:
        return SEQUENCES[tag][1](decode(item, resolve) for item in body)
    if tag in MAPPINGS:
        return MAPPINGS[tag]({decode(k, resolve): decode(v, resolve) for k, v in body})
    return decode_rare(tag, body, resolve)


def decode_rare(tag, body, resolve):
    if tag in ATOMS:
        return ATOMS[tag][2](body)
    if tag == "dd":
        return collections.defaultdict(FACTORIES[body[0]], decode(body[1], resolve))
    if tag == "sl":
        return slice(*(decode(it, resolve) for it in body))
    if tag == "nt":
        return make_record(*body[:2], decode(body[2], resolve))
    if tag == "np":
        return decode_numpy(*body)
    return resolve(tag, body)


def decode_numpy(kind, items):
    if kind.lstrip("<>|=")[:1] not in tuple("biufU"):
        raise NotPlain("the solution sent an array that is no plain data")
    import numpy

    return numpy.array(items, dtype=kind)


RECORDS = {}


def make_record(name, fields, values):
    """A named tuple; its type is the same for the same name and fields."""
    if any(hasattr(kind, field) for kind in (str, list, dict, set, float) for field in fields) and any(map(callable, values)):
        raise NotPlain("the solution sent a record with methods of its own")
    key = (str(name), tuple(map(str, fields)))
    if key not in RECORDS:
        RECORDS[key] = collections.namedtuple(*key)
    return RECORDS[key](*values)


def names_of(kind):
    """A class by its own name and those of its bases; one of the tests is nobody else's."""
    return [[base.__module__.replace("__main__", "tests"), base.__qualname__] for base in kind.__mro__]


def take_over():
    """Keeps the two streams for ourselves: what is printed goes to standard error."""
    streams = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return streams


def send(stream, message):
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


# Containers that both sides have: what one side changes in its copy is changed in the other's.

MAX_SHARED, MAX_ITEMS, loan_numbers = 32, 1000, itertools.count(1)
# The last ones that were given to the other side, by number; the last ones that it gave, with their number and what was in them.
lent, borrowed = {}, []


def is_shared(value):
    return type(value) in (list, dict, set) and len(value) <= MAX_ITEMS


def lend(value):
    """The number under which the other side tells of changes in a container; the same for the same one."""
    if not is_shared(value):
        return None
    number = next((it for it, known in lent.items() if known is value), None) or next(loan_numbers)
    # What was lent last comes last.
    lent.pop(number, None)
    lent[number] = value
    if len(lent) > MAX_SHARED:
        lent.pop(next(iter(lent)))
    return number


def borrow(number, value):
    if type(number) is int and is_shared(value):
        borrowed.append((number, value, text_of(value)))


def changes():
    """The borrowed containers that were changed since, with their numbers."""
    last, found, borrowed[:] = borrowed[-MAX_SHARED:], [], []
    for number, value, text in last:
        now = text_of(value)
        # Whoever holds it beside the list and the variables here may change it again.
        if sys.getrefcount(value) > 3:
            borrowed.append((number, value, now))
        if now != text:
            found.append([number, value])
    return found


def text_of(value):
    """What is in a container; what is no plain data is told by its `identity`."""
    return json.dumps(encode(value, lambda it: {"ref": identity(it)}))
