"""When two objects of the solution are equal: if it says so itself, and their attributes are equal plain data.

Attributes are worth something only if they were told before it was known what they should be. So the later
of the two must have been made by the tests, of plain arguments that are all found among its attributes; the
earlier one was here before those arguments were sent; and neither has changed since. Whatever else is
compared cannot be judged.
"""


def only_plain(value):
    raise NotPlain(f"a {type(value).__name__} is no plain data")


def copy_of_plain(values):
    """A copy that nobody can change; none where something of the solution is in it."""
    try:
        return decode(encode(values, only_plain), lambda *_: None)
    except (Exception, NotPlain):
        return None


def read_state(data):
    """An object's attributes, if they are plain data."""
    return None if data is None else decode(data, lambda tag, _: only_plain(tag))


def shows_arguments(remote):
    """Whether its attributes hold every argument that it was made of."""
    left = list(remote.remote_state.values())
    for argument in remote.remote_made:
        if argument not in left:
            return False
        left.remove(argument)
    return bool(remote.remote_made)


def is_unchanged(remote):
    return ask({"op": "state", "target": remote.remote_number}, "") == remote.remote_state


def are_comparable(early, late):
    if not isinstance(early, RemoteObject) or not isinstance(late, RemoteObject) or early.remote_born >= late.remote_born:
        return False
    if not early.remote_state or not late.remote_state or late.remote_made is None:
        return False
    are_same_kind = kinds[early.remote_number] == kinds[late.remote_number]
    return are_same_kind and shows_arguments(late) and is_unchanged(early) and is_unchanged(late)


def are_equal(left, right):
    """Whether two objects are equal; none if that cannot be judged."""
    if not are_comparable(*sorted((left, right), key=lambda it: getattr(it, "remote_born", 0))):
        return None
    own = ask({"op": "__eq__", "target": left.remote_number, "args": pack([right])}, "")
    if type(own) is not bool or (own and left.remote_state != right.remote_state):
        return None
    return own
