"""When two objects of the solution are equal: if it says so itself, and their attributes are equal plain data.

Attributes are worth something only if they were told before it was known what they should be. So an object
that the tests only compare is made when they compare it (`expected.py`), after the other, of plain arguments
that show among its attributes; and neither has changed since. One that was there before must have been given
to the solution, as plain data would have been. An argument shows in an attribute that holds it, or is drawn
on one line from it, in every object that the tests made of the class until then; or every attribute that is not
empty is an argument. Otherwise one object with all attributes would
do. Two objects that the solution made are compared where the tests expect objects.
"""

import math

# How many attributes beside its own may hold an argument.
MAX_SPARE = 1


def only_plain(value):
    raise NotPlain(f"a {type(value).__name__} is no plain data")


def copy_of_plain(values):
    """A copy that nobody can change; none where something of the solution is in it."""
    try:
        return decode(encode(values, only_plain), lambda *_: None)
    except (Exception, NotPlain):
        return None


def views(remote):
    """Its attributes, with its content whole or by its items."""
    attributes, *content = remote.remote_state
    yield {**attributes, **{"": it for it in content}}
    if content and isinstance(content[0], (list, tuple)):
        yield {**attributes, **dict(enumerate(content[0]))}
    lists = [it for it in attributes.values() if isinstance(it, (list, tuple))]
    if len(lists) == len(attributes) == 1:
        yield dict(enumerate(lists[0]))


def shows(state, late, others):
    """Whether the attributes of an object show the arguments that it was made of."""
    made, values = late.remote_made, list(state.values())
    if all(it in values for it in made) and all(it in made for it in values if it):
        return True
    holders = [list(holders_of(idx, state, late, others)) for idx in range(len(made))]
    return all(any(it) and len(it) <= len(made) + MAX_SPARE for it in holders)


def holders_of(idx, state, late, others):
    """The attributes that follow an argument in all others that the tests made of the class, and so in this one or not."""
    argument = late.remote_made[idx]
    for name in state:
        pairs = [(other.remote_made[idx], view[name]) for other in others for view in views(other) if name in view]
        if len(pairs) >= len(others) and all(value == made for made, value in pairs):
            yield state[name] == argument
        elif follows(pairs):
            yield is_on_line(pairs, argument, state[name])


def follows(pairs):
    """Whether a number is drawn on one line from another: cents from euros."""
    are_numbers = all(type(it) in (int, float) for pair in pairs for it in pair)
    are_different = all(len(set(it)) > 1 for it in zip(*pairs))
    return are_numbers and are_different and all(is_on_line(pairs, *it) for it in pairs)


def is_on_line(pairs, made, value):
    (x0, y0), (x1, y1) = pairs[0], next(it for it in pairs if it[0] != pairs[0][0])
    if not all(type(it) in (int, float) and math.isfinite(it) for it in (value, made, x0, y0, x1, y1)):
        return False
    left, right = (value - y0) * (x1 - x0), (y1 - y0) * (made - x0)
    return math.isfinite(left) and left == right


def shows_arguments(late):
    others = [
        it
        for it in made_objects
        if it.remote_class is late.remote_class and it.remote_state and it.remote_made
        if len(it.remote_made) == len(late.remote_made) and it.remote_made != late.remote_made and it.remote_born < late.remote_born
    ]
    return bool(late.remote_made) and any(shows(state, late, others) for state in views(late))


def is_unchanged(remote):
    return remote.remote_told() == remote.remote_state


def are_equal(left, right):
    """Whether two objects are equal. One that is only compared is made last, each time."""
    for it in sorted((left, right), key=lambda it: it.remote_maker is not None):
        it.remote_reference()
        if it.remote_maker is not None and it.remote_number not in handed:
            it.remote_become(it.remote_maker())
    early, late = sorted((left, right), key=lambda it: it.remote_born)
    own = ask({"op": "__eq__", "target": left.remote_reference(), "args": [right.remote_reference()]}, "")
    if (own is False and (early.remote_is_made or late.remote_is_made)) or are_new(early, late):
        return own is True
    if has_come_back(early, late):
        return True
    if not can_tell(early, late, own):
        raise give_up(f"the attributes of the solution's objects do not show whether they are equal ({late.remote_origin})")
    return are_alike(early.remote_state, late.remote_state) and is_unchanged(early) and is_unchanged(late)


def are_new(*objects):
    """Whether the solution did nothing but make them, of what the tests said: then being equal is all that is asked of it."""
    return all(it.remote_is_made and it.remote_number not in handed and is_made_by_class(it.remote_origin) for it in objects)


def are_alike(left, right):
    """Equality, with a tolerance for numbers that were computed."""
    if type(left) is float or type(right) is float:
        return all(type(it) in (int, float) for it in (left, right)) and math.isclose(left, right, abs_tol=1e-12)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(are_alike(left[it], right[it]) for it in left)
    if isinstance(left, (list, tuple)) and type(left) is type(right):
        return len(left) == len(right) and all(map(are_alike, left, right))
    return left == right


def has_come_back(early, late):
    """Whether an object is one that the tests have made and given to the solution, and no other."""
    same = [it for it in made_objects if it.remote_number == early.remote_number]
    return early.remote_number == late.remote_number and early.remote_number in handed and len(same) == 1 and not late.remote_is_made


def can_tell(early, late, own):
    """Whether it is worth anything that the attributes of two objects are equal."""
    is_known = early.remote_born < late.remote_born and all(it.remote_state not in (None, [{}]) for it in (early, late))
    if not is_known or early.remote_class is not late.remote_class:
        return False
    if late.remote_is_made:
        return shows_arguments(late)
    if early.remote_is_made:
        return early.remote_number in handed and shows_arguments(early)
    for it in (early, late):
        doubt(it, True, "__eq__")
    # What it says of its own objects must be what they look like.
    return own is are_alike(early.remote_state, late.remote_state)
