"""When two objects of the solution are equal: if it says so itself, and their attributes are equal plain data.

Attributes are worth something only if they were told before it was known what they should be: one of the two
is made by the tests after the other came, of plain arguments that show among its attributes, and neither has
changed since. One that was there before must have been given to the solution, as plain data would have been.
An argument shows in an attribute that holds it in every object that the tests made of the class. Otherwise one
object with all attributes would do. Where nothing of that is so, stand-ins do not show whether objects are equal.
"""


def only_plain(value):
    raise NotPlain(f"a {type(value).__name__} is no plain data")


def copy_of_plain(values):
    """A copy that nobody can change; none where something of the solution is in it."""
    try:
        return decode(encode(values, only_plain), lambda *_: None)
    except (Exception, NotPlain):
        return None


def are_equal(left, right):
    early, late = sorted((left, right), key=lambda it: it.remote_born)
    own = ask({"op": "__eq__", "target": left.remote_reference(), "args": [right.remote_reference()]}, "")
    is_made = early.remote_arguments is not None or late.remote_arguments is not None
    if (own is False and is_made) or are_new(early, late) or has_come_back(early, late):
        return own is True
    if not can_tell(early, late):
        raise give_up(f"the attributes of the solution's objects do not show whether they are equal ({late.remote_origin})")
    return early.remote_state == late.remote_state and all(it.remote_told() == it.remote_state for it in (early, late))


def are_new(*objects):
    """Whether the solution did nothing but make them, of what the tests said: then being equal is all that is asked of it."""
    is_new = lambda it: it.remote_is_made and it.remote_number not in handed and any(it is made for made in made_objects)
    return all(map(is_new, objects))


def has_come_back(early, late):
    """Whether an object is one that the tests have made and given to the solution, and no other."""
    same = [it for it in made_objects if it.remote_number == early.remote_number]
    return early.remote_number == late.remote_number and early.remote_number in handed and len(same) == 1 and late.remote_arguments is None


def can_tell(early, late):
    """Whether it is worth anything that the attributes of two objects are equal."""
    if not early.remote_born < late.remote_born or early.remote_class is not late.remote_class or not values_of(late):
        return False
    if late.remote_arguments:
        return shows(late)
    if early.remote_arguments:
        return early.remote_number in handed and shows(early)
    # What came of objects of the tests by operators alone.
    return early.remote_is_made and late.remote_is_made


def shows(made):
    """Whether the attributes hold the arguments and little else, or do so in all that the tests made of the class."""
    given, values = made.remote_arguments, list(values_of(made).values())
    if all(it in values for it in given) and all(it in given for it in values if it):
        return True
    alike = [it for it in made_objects if it.remote_class is made.remote_class and len(it.remote_arguments or ()) == len(given)]
    return all(any(follows(name, [(it.remote_arguments[idx], values_of(it)) for it in alike]) for name in values_of(made)) for idx in range(len(given)))


def follows(name, facts):
    is_constant = all(given == facts[0][0] for given, _ in facts)
    return not is_constant and all(name in values and values[name] == given for given, values in facts)


def values_of(it):
    """What was told when it came: attributes and content, or the items of the only one."""
    attributes, *content = it.remote_state or [{}]
    values = {**attributes, **dict(zip([""], content))}
    only = next(iter(values.values())) if len(values) == 1 else None
    is_split = isinstance(only, (list, tuple)) and not any(it_given == only for it_given in it.remote_arguments or ())
    return dict(enumerate(only)) if is_split else values
